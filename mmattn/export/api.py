"""Export the model of a config, or a detector of torchvision, to a file."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mmengine.config import Config
from torch import Tensor, nn

import mmattn
from mmattn.errors import UserError, check_choice

from ..engine.data import DataError
from ..files.atomic import write_together
from .choices import DTYPES, DYNAMIC
from .comparison import compare
from .config_model import ConfigModel
from .errors import ExportError
from .graphs import graph_of
from .graphs.normalized import Normalized
from .inputs import padded
from .int8 import CALIBRATION_IMAGES, MIN_IMAGES, quantize, speedup
from .int8 import check as check_int8
from .metadata import Metadata
from .program import export_program, first_output
from .reading import openvino_package
from .runner import Runner
from .torchvision_model import TorchvisionModel
from .verification import (
    MAX_DIFFERENCE_OF_SIZES,
    example_inputs,
    inputs_of,
    least_valid_size,
    other_inputs,
    verify,
)
from .writing import FORMATS, Format

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
    written = _checked_format(out, format)
    _check(shape, batch, dynamic, normalize, input_dtype)
    if (int8 and written is not FORMATS['onnx']) or (keep_float and not int8):
        raise UserError('`int8` is for ONNX files, and `keep_float` for `int8`')
    files = written.files(out)
    _check_writable(files, force)
    if not isinstance(config, nn.Module):
        if classes is not None:
            raise UserError("`classes` is for torchvision's detectors")
        source = ConfigModel(config, checkpoint, cfg_options)
    elif checkpoint is not None or cfg_options:
        raise UserError('`checkpoint` and `cfg_options` are for configs')
    else:
        source = TorchvisionModel(config, classes)
    entries = source.entries
    if input_dtype == 'uint8' and entries['channel_order'] == 'file':
        raise UserError("`input_dtype='uint8'` is for RGB images, not for LoadChannels")
    if input_dtype == 'uint8' and (entries['resize'] or {}).get('backend') == 'torch':
        raise UserError(
            "`input_dtype='uint8'` is for configs: torchvision resizes to floats"
        )
    settings = {} if output is None else dict(output=output)
    graph = graph_of(source.model, part, **settings)
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
    batches, images = _to_compare(source, verify, num_images, say)
    if images is not None:
        say(f'comparing with PyTorch on {images.name}')
    content, runner = export_graph(graph, metadata, written, batches)
    if images is not None and graph.task != 'features':
        found = compare(runner, source.predictions(images))
        for line in found.lines():
            say(line)
        found.check()
    if int8:
        content = _quantized(source, content, runner, num_images, keep_float, say)
    write_together(dict(zip(files, content, strict=True)))
    return runner.metadata


def export_graph(
    graph: nn.Module,
    metadata: Metadata,
    format: Format,
    batches: Iterable[Tensor | str | Path] | None = (),
) -> tuple[list[bytes], Runner]:
    """Return the content of files with a graph, and what runs them.

    Args:
        graph: see `mmattn.export.graphs`.
        metadata: how images are prepared for the graph.
        format: one of `FORMATS`.
        batches: see `export_model`; None runs noise of the example's size.

    Raises:
        ExportError: the graph cannot be exported, or the outputs of the file differ
            from PyTorch's. With `metadata.dynamic` this is tried at other sizes, too.
        ValueError: the metadata do not describe a file that `load` runs.
    """
    if metadata.normalized:
        pad = metadata.pad['value']
        graph = Normalized(graph, metadata.mean, metadata.std, pad).eval()
    inputs = example_inputs(metadata)
    program = export_program(graph, inputs, metadata.dynamic)
    names = graph.output_names or [
        f'feature{i}' for i in range(len(program.graph_signature.user_outputs))
    ]
    metadata = replace(metadata, outputs=list(names))
    metadata.check()
    metadata.check_classes(first_output(program).shape)
    model = format.convert(program, metadata)
    content = format.content(model, metadata)
    runner = format.runner(content)
    verify(runner, graph, (inputs_of(each, metadata) for each in batches or ()))
    # The detections of noise nearly tie, so that rounding may swap them.
    at_most = math.inf if metadata.per_image else MAX_DIFFERENCE_OF_SIZES
    noise = [inputs] if batches is None else []
    verify(runner, graph, [*noise, *other_inputs(metadata)], at_most)
    if metadata.dynamic == 'size':
        least = least_valid_size(program, inputs, runner, graph)
        runner.metadata = replace(metadata, least=least)
        content = format.content(model, runner.metadata)
    return content, runner


def _to_compare(source, verify, num_images: int, say: Callable[[str], None]):
    """Return the batches and paths for the graph, and the images to predict.

    The first is None for noise, the second None where there is nothing to prepare.
    """
    if verify is None:
        try:
            images = source.labeled(num_images)
        except DataError as error:
            say(f'comparing with PyTorch on noise alone: {error}')
            return None, None
        return images.paths, images
    verify = [verify] if isinstance(verify, (Tensor, str, Path)) else list(verify)
    paths = [each for each in verify if not isinstance(each, Tensor)]
    return verify, source.given(paths) if paths else None


def _quantized(source, content, runner: Runner, count: int, keep_float, say):
    """Return the content of an ONNX file in int8 after the checks of `export_model`."""
    try:
        images = source.labeled(max(count, MIN_IMAGES))
    except DataError as error:
        raise ExportError(f'int8 requires images of the test set: {error}') from error
    paths = images.paths[:: math.ceil(len(images.paths) / CALIBRATION_IMAGES)]
    say(f'quantizing with {len(paths)} images, measuring on {images.name}')
    batches = [[x.numpy() for x in inputs_of(path, runner.metadata)] for path in paths]
    content = [quantize(*content, iter(batches), keep_float)]
    faster = FORMATS['onnx'].runner(content)
    metrics = compare(faster, source.predictions(images)).metrics
    say(check_int8(metrics, speedup(runner.run, faster.run, batches[0])))
    return content


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


def _checked_format(out: Path, format: str | None) -> Format:
    suffix = out.suffix.removeprefix('.')
    format = format or ('openvino' if suffix == 'xml' else suffix)
    check_choice('`format`', format, FORMATS)
    if format == 'openvino':
        openvino_package()
        if suffix != 'xml':
            raise UserError(f'a file for OpenVINO must end with .xml, got {out}')
    return FORMATS[format]


def _check(shape, batch, dynamic, normalize, input_dtype):
    is_size = isinstance(shape, Sequence) and len(shape) == 2
    if not is_size or any(type(side) is not int or side < 1 for side in shape):
        raise UserError(f'`shape` must be a height and a width, got {shape}')
    if type(batch) is not int or batch < 1:
        raise UserError(f'`batch` must be a positive number, got {batch}')
    check_choice('`dynamic`', dynamic, DYNAMIC)
    check_choice('`input_dtype`', input_dtype, DTYPES)
    if input_dtype == 'uint8' and not normalize:
        raise UserError("`input_dtype='uint8'` requires `normalize`")
