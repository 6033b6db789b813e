"""Export the model of a config to a file."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import Tensor, nn

import mmattn
from mmattn.errors import UserError

from ..engine.data import DataError, innermost_dataset
from ..engine.model import build_model
from ..files import file_digest, read_config_file
from ..files.atomic import write_together
from ..weights.resolve import local_checkpoint
from .comparison import GivenImages, LabeledImages, compare
from .errors import ExportError
from .graphs import graph_of
from .graphs.normalized import Normalized
from .inputs import padded
from .int8 import CALIBRATION_IMAGES, MIN_IMAGES, quantize, speedup
from .int8 import check as check_int8
from .metadata import Metadata
from .openvino_ir import IR, openvino_package
from .preprocessing import class_names, image_steps, normalization, raw_channels
from .runner import Runner
from .torchvision_models import compare as compare_detector
from .torchvision_models import preparation
from .verification import (
    MAX_DIFFERENCE_OF_SIZES,
    example_inputs,
    is_detector,
    least_valid_size,
    other_inputs,
    verification_inputs,
    verify_session,
)
from .write import (
    FORMATS,
    described,
    export_program,
    first_output,
    open_session,
    serialize,
)

DYNAMIC = (None, 'batch', 'size')
DTYPES = ('float32', 'uint8')
LOGGER = logging.getLogger('mmattn')


def export_model(
    config: str | Path | Config | nn.Module,
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
    verify: Tensor | str | Path | Iterable[Tensor | str | Path] | None = (),
    num_images: int = 10,
    int8: bool = False,
    keep_float: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    force: bool = False,
    cfg_options: Mapping | None = None,
    say: Callable[[str], None] = LOGGER.info,
) -> Metadata:
    """Write the model of a config for ONNX Runtime, OpenVINO or torch.export.

    Images are (B, 3, H, W). The metadata of a .pt2 file is in `<out>.json`, too. An
    .xml file of OpenVINO has its weights in a .bin file beside it.

    Args:
        config: config of mmdet, mmseg or mmpretrain, or its path. Or a detector of
            torchvision with its weights, which is set to evaluation mode.
        checkpoint: weights that match the model exactly, as `local_checkpoint` takes
            them; None keeps the model's own.
        out: file to write.
        shape: height and width. They are rounded up to multiples of the divisor to
            which the model pads images.
        format: 'onnx', 'pt2', or 'openvino' for an .xml file; it defaults to the
            suffix of `out`.
        batch: images in a batch.
        dynamic: None for fixed sizes, 'batch', or 'size' for batch, height and width.
            The serialized model is compared with PyTorch at other sizes. A detector
            only has to run there, since detections of noise nearly tie.
        part: 'model', or 'backbone' for the feature maps of its backbone.
        output: of a segmentor: 'logits' or 'labels'.
        normalize: normalize images inside the graph. Otherwise they are normalized.
        input_dtype: 'float32', or 'uint8' together with `normalize`.
        verify: paths of images, or batches as the graph takes them; or one of these.
            None takes images of the config's test set, or noise if it is not here. The
            outputs of the serialized model must equal PyTorch's to 0.001 of the
            largest value, and the results for images the test pipeline's.
        num_images: images of the test set, evenly spaced.
        int8: quantize an ONNX file. The test set must have annotations: on at least
            50 of its images AP, mIoU or accuracy may drop by 0.5 points, and the file
            must be at least 1.3 times as fast here as in float32.
        keep_float: patterns of nodes or modules that stay in float32; see
            `mmattn.export.int8.quantize`.
        classes: names of the labels of torchvision's detector, from 0 on, such as
            `weights.meta['categories']`. Other models take them from the config.
        force: overwrite an existing file.
        cfg_options: entries of the config to override.
        say: gets lines of text that tell what was compared, and the metrics of both
            if the test set has annotations.

    Returns:
        The metadata in the file.

    Raises:
        ExportError: the model, or one of its settings, cannot be exported.
        ImportError: `openvino` is not installed, for that format.
        FileExistsError: `out` or the file beside it exists, and `force` is not set.
        ValueError: an argument is not one of those above, or the checkpoint does not
            match the model.
        OSError: a file cannot be written. Existing files of this name, the .xml and the
            .bin file, keep their content.
    """
    out = Path(out)
    format = _checked_format(out, format)
    _check(shape, batch, dynamic, normalize, input_dtype)
    if (int8 and format != 'onnx') or (keep_float and not int8):
        raise UserError('`int8` is for ONNX files, and `keep_float` for `int8`')
    _check_writable(_files(out, format), force)
    if isinstance(config, nn.Module):
        if checkpoint is not None or cfg_options:
            raise UserError('`checkpoint` and `cfg_options` are for configs')
        model, cfg, entries = config, Config(), preparation(config)
        entries['classes'] = classes and list(classes)
    elif classes is not None:
        raise UserError("`classes` is for torchvision's detectors")
    else:
        model, cfg, entries = _built(config, checkpoint, cfg_options)
    if input_dtype == 'uint8' and entries['channel_order'] == 'file':
        raise UserError("`input_dtype='uint8'` is for RGB images, not for LoadChannels")
    if input_dtype == 'uint8' and isinstance(config, nn.Module):
        raise UserError(
            "`input_dtype='uint8'` is for configs: torchvision resizes to floats"
        )
    settings = {} if output is None else dict(output=output)
    graph = graph_of(model, part, **settings)
    metadata = Metadata(
        task=graph.task,
        inputs=list(graph.input_names),
        outputs=[],
        shape=_rounded(shape, entries['pad']['divisor']),
        batch=batch,
        dynamic=dynamic,
        normalized=normalize,
        input_dtype=input_dtype,
        version=mmattn.__version__,
        **entries,
        **getattr(graph, 'metadata', {}),
    )
    batches, images = _to_compare(cfg, verify, num_images, say)
    if images is not None:
        say(f'comparing with PyTorch on {images.name}')
    content, metadata = export_graph(graph, metadata, format, batches)
    if images is not None and metadata.task != 'features':
        runner = Runner(on_arrays(open_session(content, format)), metadata)
        if cfg:
            found = compare(model, runner, cfg, images)
        else:
            found = compare_detector(model, runner, images.paths)
        for line in found.lines():
            say(line)
        found.check()
    if int8:
        content = _quantized(
            content, graph, model, metadata, cfg, num_images, keep_float, say
        )
    if format == 'onnx':
        content = (content,)
    elif format == 'pt2':
        content = (content, metadata.to_json().encode())
    else:
        content = (content.weights, content.xml)
    write_together(dict(zip(_files(out, format), content, strict=True)))
    return metadata


def export_graph(
    graph: nn.Module,
    metadata: Metadata,
    format: str,
    verify: Iterable[Tensor | str | Path] | None = (),
) -> tuple[bytes | IR, Metadata]:
    """Return the content of a file with a graph, and its metadata with the outputs.

    Args:
        graph: see `mmattn.export.graphs`.
        metadata: how images are prepared for the graph.
        format: 'onnx', 'pt2' or 'openvino'.
        verify: see `export_model`; None runs noise of the example's size.

    Raises:
        ExportError: the graph cannot be exported, or the outputs of the serialized
            graph differ from PyTorch's. With `metadata.dynamic` this is tried at other
            sizes, too.
        ValueError: the metadata do not describe a file that `load` runs.
    """
    if metadata.normalized:
        pad = metadata.pad['value']
        graph = Normalized(graph, metadata.mean, metadata.std, pad).eval()
    inputs = example_inputs(graph, metadata)
    program = export_program(graph, inputs, metadata.dynamic)
    names = graph.output_names or [
        f'feature{i}' for i in range(len(program.graph_signature.user_outputs))
    ]
    metadata = replace(metadata, outputs=list(names))
    metadata.check()
    metadata.check_classes(first_output(program).shape)
    content = serialize(program, metadata, format)
    session = cache(lambda: open_session(content, format))
    batches = (verification_inputs(each, graph, metadata) for each in verify or ())
    verify_session(session, graph, batches)
    # The detections of noise nearly tie, so that rounding may swap them.
    at_most = math.inf if is_detector(graph) else MAX_DIFFERENCE_OF_SIZES
    if verify is None:
        verify_session(session, graph, [inputs], at_most)
    verify_session(session, graph, other_inputs(graph, metadata), at_most)
    if metadata.dynamic == 'size':
        least = least_valid_size(program, inputs, session, graph, metadata)
        metadata = replace(metadata, least=least)
        content = described(content, program, metadata, format)
    return content, metadata


def _built(config, checkpoint, cfg_options) -> tuple[nn.Module, Config, dict]:
    """Return the model of a config, the config, and entries of the metadata."""
    cfg = config if isinstance(config, Config) else read_config_file(config)
    if cfg_options:
        cfg.merge_from_dict(dict(cfg_options))
    if not cfg.get('model'):
        raise UserError(f'the config must have a `model`, got {cfg.filename or cfg}')
    checkpoint = None if checkpoint is None else local_checkpoint(checkpoint)
    model, loaded = build_model(cfg, checkpoint)
    entries = dict(
        config=cfg.filename and Path(cfg.filename).name,
        checkpoint_sha256=None if checkpoint is None else file_digest(checkpoint),
        **normalization(model, raw_channels(cfg)),
        **image_steps(cfg),
        **class_names(cfg, loaded),
    )
    return model, cfg, entries


def _to_compare(cfg, verify, num_images: int, say: Callable[[str], None]):
    """Return the batches and paths for the graph, and the images for the pipeline.

    The first is None for noise, the second None where the config prepares no images.
    Detectors of torchvision have no config, and prepare images by themselves.
    """
    if verify is None:
        try:
            with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
                images = LabeledImages(cfg, num_images)
        except DataError as error:
            say(f'comparing with PyTorch on noise alone: {error}')
            return None, None
        return images.paths, images
    verify = [verify] if isinstance(verify, (Tensor, str, Path)) else list(verify)
    paths = [each for each in verify if not isinstance(each, Tensor)]
    has_pipeline = innermost_dataset(cfg.get('test_dataloader')).get('pipeline')
    if paths and (has_pipeline or not cfg):
        return verify, GivenImages(cfg, paths)
    return verify, None


def _quantized(content, graph, model, metadata, cfg, count, keep_float, say) -> bytes:
    """Return an ONNX file in int8 after the checks of `export_model`."""
    try:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            images = LabeledImages(cfg, max(count, MIN_IMAGES))
    except DataError as error:
        raise ExportError(f'int8 requires images of the test set: {error}') from error
    paths = images.paths[:: math.ceil(len(images.paths) / CALIBRATION_IMAGES)]
    say(f'quantizing with {len(paths)} images, measuring on {images.name}')
    batches = [verification_inputs(path, graph, metadata) for path in paths]
    quantized = quantize(content, iter(batches), keep_float)
    sessions = [open_session(each, 'onnx') for each in (content, quantized)]
    runner = Runner(on_arrays(sessions[1]), metadata)
    metrics = compare(model, runner, cfg, images).metrics
    say(check_int8(metrics, speedup(*sessions, batches[0])))
    return quantized


def on_arrays(session: Callable[..., list[Tensor]]) -> Callable[..., list]:
    """Return a session that takes and returns arrays."""

    def run(*inputs):
        return [out.numpy() for out in session(*map(torch.from_numpy, inputs))]

    return run


def _rounded(shape: Sequence[int], divisor: int) -> list[int]:
    """Return the shape to which the model pads images of a shape."""
    rounded = padded(shape, divisor)
    if rounded != list(shape):
        LOGGER.warning(
            'the shape %d x %d is rounded up to %d x %d, since the data_preprocessor '
            'pads images to multiples of %d',
            *shape,
            *rounded,
            divisor,
        )
    return rounded


def _check_writable(files: Sequence[Path], force: bool):
    """Raise an OSError where a file cannot be written, before the work begins."""
    for path in files:
        if path.is_dir():
            raise IsADirectoryError(f'{path} is a folder; give the name of a file')
        if path.exists() and not force:
            raise FileExistsError(f'{path} exists; `force` (--force) overwrites it')
        if not path.parent.is_dir():
            raise FileNotFoundError(f'the folder {path.parent} does not exist')


def _checked_format(out: Path, format: str | None) -> str:
    suffix = out.suffix.removeprefix('.')
    format = format or ('openvino' if suffix == 'xml' else suffix)
    if format not in FORMATS:
        raise UserError(f'`format` must be one of {FORMATS}, got {format!r}')
    if format == 'openvino':
        openvino_package()
        if suffix != 'xml':
            raise UserError(f'a file for OpenVINO must end with .xml, got {out}')
    return format


def _files(out: Path, format: str) -> list[Path]:
    """Return the files of an export; without the last one it is not complete."""
    if format == 'openvino':
        return [out.with_suffix('.bin'), out]
    return [out, Path(f'{out}.json')] if format == 'pt2' else [out]


def _check(shape, batch, dynamic, normalize, input_dtype):
    is_size = isinstance(shape, Sequence) and len(shape) == 2
    if not is_size or any(type(side) is not int or side < 1 for side in shape):
        raise UserError(f'`shape` must be a height and a width, got {shape}')
    if type(batch) is not int or batch < 1:
        raise UserError(f'`batch` must be a positive number, got {batch}')
    if dynamic not in DYNAMIC:
        raise UserError(f'`dynamic` must be one of {DYNAMIC}, got {dynamic!r}')
    if input_dtype not in DTYPES:
        raise UserError(f'`input_dtype` must be one of {DTYPES}, got {input_dtype!r}')
    if input_dtype == 'uint8' and not normalize:
        raise UserError("`input_dtype='uint8'` requires `normalize`")
