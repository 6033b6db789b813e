"""Export the model of a config to a file."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor, nn

import mmattn

from ..engine.checkpoints.atomic_files import write_atomically
from ..engine.model import build_model
from ..images import read_image
from .errors import ExportError
from .graphs import graph_of
from .graphs.normalized import Normalized
from .inputs import prepare, stack
from .metadata import Metadata
from .preprocessing import class_names, image_steps, normalization
from .write import FORMATS, difference, export_program, open_session, serialize

DYNAMIC = (None, 'batch', 'size')
DTYPES = ('float32', 'uint8')
MAX_DIFFERENCE = 1e-3  # relative, of a verified file
# Of other sizes than the example's, on noise. A constant of the example's size that is
# left in a graph can change the output as little as 1e-4.
MAX_DIFFERENCE_OF_SIZES = 2e-5
OTHER_SIZES = (37, 19), (-29, -13)  # pixels that are added to height and width


def export_model(
    config: str | Path | Config,
    checkpoint: str | Path | None,
    out: str | Path,
    *,
    shape: Sequence[int],
    format: str | None = None,
    batch: int = 1,
    dynamic: str | None = None,
    part: str = 'model',
    output: str | None = None,
    normalize: bool = False,
    input_dtype: str = 'float32',
    verify: Iterable[Tensor | str | Path] = (),
    force: bool = False,
    cfg_options: Mapping | None = None,
) -> Metadata:
    """Write the model of a config as an ONNX file or a torch.export program.

    Images are (B, 3, H, W). Beside a .pt2 file, its metadata is in `<out>.json`, too.

    Args:
        config: config of mmdet, mmseg or mmpretrain, or its path.
        checkpoint: weights that match the model exactly; None keeps the random ones.
        out: file to write.
        shape: height and width.
        format: 'onnx' or 'pt2'; it defaults to the suffix of `out`.
        batch: images in a batch.
        dynamic: None for fixed sizes, 'batch', or 'size' for batch, height and width.
            The serialized model is compared with PyTorch at other sizes.
        part: 'model', or 'backbone' for the feature maps of its backbone.
        output: of a segmentor: 'logits' or 'labels'.
        normalize: normalize images inside the graph. Otherwise they are normalized.
        input_dtype: 'float32', or 'uint8' together with `normalize`.
        verify: paths of images, or batches as the graph takes them. The serialized
            model must give PyTorch's outputs for them.
        force: overwrite an existing file.
        cfg_options: entries of the config to override.

    Returns:
        The metadata in the file.

    Raises:
        ExportError: the model, or one of its settings, cannot be exported.
        FileExistsError: `out` exists, and `force` is not set.
        ValueError: an argument is not one of those above, or the checkpoint does not
            match the model.
        OSError: the file cannot be written. Nothing is left of it.
    """
    out = Path(out)
    format = _checked_format(out, format)
    _check(shape, batch, dynamic, normalize, input_dtype)
    files = [out, Path(f'{out}.json')] if format == 'pt2' else [out]
    for path in files:
        if path.exists() and not force:
            raise FileExistsError(f'{path} exists; `force` (--force) overwrites it')
    cfg = Config.fromfile(config) if not isinstance(config, Config) else config
    if cfg_options:
        cfg.merge_from_dict(dict(cfg_options))
    model, loaded = build_model(cfg, checkpoint)
    settings = {} if output is None else dict(output=output)
    graph = graph_of(model, part, **settings)
    metadata = Metadata(
        task=graph.task,
        inputs=list(graph.input_names),
        outputs=[],
        shape=list(shape),
        batch=batch,
        dynamic=dynamic,
        normalized=normalize,
        input_dtype=input_dtype,
        version=mmattn.__version__,
        config=cfg.filename and Path(cfg.filename).name,
        checkpoint_sha256=_hash(checkpoint),
        **normalization(model),
        **image_steps(cfg),
        **class_names(cfg, loaded),
        **getattr(graph, 'metadata', {}),
    )
    content, metadata = export_graph(graph, metadata, format, verify)
    write_atomically(out, content)
    if format == 'pt2':
        write_atomically(files[1], metadata.to_json().encode())
    return metadata


def export_graph(
    graph: nn.Module,
    metadata: Metadata,
    format: str,
    verify: Iterable[Tensor | str | Path] = (),
) -> tuple[bytes, Metadata]:
    """Return the content of a file with a graph, and its metadata with the outputs.

    Args:
        graph: see `mmattn.export.graphs`.
        metadata: how images are prepared for the graph.
        format: 'onnx' or 'pt2'.
        verify: see `export_model`.

    Raises:
        ExportError: the graph cannot be exported, or the outputs of the serialized
            graph differ from PyTorch's. With `metadata.dynamic` this is tried at other
            sizes, too.
    """
    if metadata.normalized:
        pad = metadata.pad['value']
        graph = Normalized(graph, metadata.mean, metadata.std, pad).eval()
    inputs = example_inputs(graph, metadata)
    with torch.no_grad():
        outputs = graph(*inputs)
    names = graph.output_names or [f'feature{i}' for i in range(len(outputs))]
    metadata = replace(metadata, outputs=list(names))
    program = export_program(graph, inputs, metadata.dynamic)
    content = serialize(program, metadata, format)
    batches = (verification_inputs(each, graph, metadata) for each in verify)
    verify_content(content, format, graph, batches)
    # The detections of noise nearly tie, so that rounding may swap them.
    at_most = math.inf if _is_detector(graph) else MAX_DIFFERENCE_OF_SIZES
    verify_content(content, format, graph, other_inputs(graph, metadata), at_most)
    return content, metadata


def _is_detector(graph: nn.Module) -> bool:
    return 'image_size' in graph.input_names


def example_inputs(graph: nn.Module, metadata: Metadata) -> tuple[Tensor, ...]:
    """Return images of noise, and their sizes if the graph takes them."""
    # torch.export takes a batch of 1 for a constant.
    is_fixed = metadata.dynamic is None or _is_detector(graph)
    batch = metadata.batch if is_fixed else max(2, metadata.batch)
    return _noise(graph, metadata, batch, metadata.shape)


def other_inputs(graph: nn.Module, metadata: Metadata) -> Iterator[tuple[Tensor, ...]]:
    """Yield inputs of other sizes than the example's, if sizes are dynamic."""
    (H, W), batch = metadata.shape, metadata.batch
    batches = (batch, batch) if _is_detector(graph) else (max(2, batch) + 1, 1)
    for count, (dy, dx) in zip(batches, OTHER_SIZES, strict=True):
        if metadata.dynamic == 'size':
            least = min(H, W, 32)
            yield _noise(
                graph, metadata, count, (max(H + dy, least), max(W + dx, least))
            )
        elif metadata.dynamic == 'batch':
            yield _noise(graph, metadata, count, (H, W))


def _noise(graph, metadata, batch, shape):
    size = (batch, 3, *shape)
    generator = torch.Generator().manual_seed(0)
    if metadata.normalized:
        image = torch.randint(0, 256, size, generator=generator)
        image = image.to(getattr(torch, metadata.input_dtype))
    else:
        image = torch.randn(size, generator=generator)
    return with_sizes(graph, image)


def with_sizes(graph: nn.Module, image: Tensor) -> tuple[Tensor, ...]:
    """Return the inputs of a graph for images without padding."""
    if 'image_size' not in graph.input_names:
        return (image,)
    return image, torch.tensor([image.shape[-2:]] * len(image))


def verification_inputs(
    image: Tensor | str | Path, graph: nn.Module, metadata: Metadata
) -> tuple[Tensor, ...]:
    """Return the inputs of a graph for a batch, or for an image as the runner does."""
    if isinstance(image, Tensor):
        return with_sizes(graph, image)
    prepared = [prepare(read_image(image), metadata)] * metadata.batch
    inputs = (torch.from_numpy(stack(prepared, metadata)),)
    if 'image_size' in graph.input_names:
        inputs += (torch.tensor([each.size for each in prepared]),)
    return inputs


def verify_content(
    content: bytes,
    format: str,
    graph: nn.Module,
    batches: Iterable[Sequence[Tensor]],
    at_most: float = MAX_DIFFERENCE,
) -> float:
    """Return the largest difference between serialized content and PyTorch.

    Args:
        content: content of a file.
        format: 'onnx' or 'pt2'.
        graph: the graph that was exported.
        batches: inputs of the graph.
        at_most: difference that is accepted, over the largest value of an output.

    Raises:
        ExportError: an output differs by more, or the content cannot run.
    """
    largest, session = 0.0, None
    for inputs in batches:
        session = session or open_session(content, format)
        with torch.no_grad():
            expected = graph(*inputs)
        shape = tuple(inputs[0].shape)
        try:
            outputs = session(*inputs)
        except Exception as error:  # those of ONNX Runtime have no common base
            raise ExportError(
                f'the exported model fails with images of shape {shape}: {error}'
            ) from error
        for i, pair in enumerate(zip(outputs, expected, strict=True)):
            found = difference(*pair)
            # Rounding may change the class of a pixel where two nearly tie.
            is_label = not pair[1].is_floating_point()
            if not found <= max(at_most, MAX_DIFFERENCE * is_label):
                raise ExportError(
                    f'output {i} of the exported model differs from PyTorch by '
                    f'{found:.1e} of its largest value with images of shape {shape}; '
                    f'at most {at_most} is accepted'
                )
            largest = max(largest, found)
    return largest


def _checked_format(out: Path, format: str | None) -> str:
    format = format or out.suffix.removeprefix('.')
    if format not in FORMATS:
        raise ValueError(f'`format` must be one of {FORMATS}, got {format!r}')
    return format


def _check(shape, batch, dynamic, normalize, input_dtype):
    if len(shape) != 2 or any(type(side) is not int or side < 1 for side in shape):
        raise ValueError(f'`shape` must be a height and a width, got {shape}')
    if type(batch) is not int or batch < 1:
        raise ValueError(f'`batch` must be a positive number, got {batch}')
    if dynamic not in DYNAMIC:
        raise ValueError(f'`dynamic` must be one of {DYNAMIC}, got {dynamic!r}')
    if input_dtype not in DTYPES:
        raise ValueError(f'`input_dtype` must be one of {DTYPES}, got {input_dtype!r}')
    if input_dtype == 'uint8' and not normalize:
        raise ValueError("`input_dtype='uint8'` requires `normalize`")


def _hash(path: str | Path | None) -> str | None:
    if path is None:
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
