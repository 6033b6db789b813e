"""Run exported files on images, without the packages that the models came from."""

from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from PIL import Image

from mmattn.errors import MissingPackageError, UserError

from ..images import check_interpolation
from ..results import Classification, Detections, Segmentation
from .inputs import Prepared, prepare, read, stack
from .metadata import KEY, PT2_FILE, Metadata
from .openvino_ir import compiled, metadata_text, ports_of, read_ir, session_of
from .results import check_outputs, detections, segmentation

Result = Detections | Segmentation | Classification | list[np.ndarray]
FORMATS = ('.onnx', '.pt2', '.xml')
PROVIDERS = ('CPUExecutionProvider',)
# Errors of zipfile for damaged archives.
UNREADABLE = (BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError)


def load(
    file: str | Path,
    *,
    threads: int | None = None,
    providers: Sequence[str] | None = None,
    trust_checkpoint: bool = False,
) -> 'Runner':
    """Return a runner of a file that `export_model` or `mmattn export` wrote.

    An .onnx file requires numpy, Pillow, OpenCV and onnxruntime, an .xml file openvino
    in its place. A .pt2 file requires PyTorch.

    Args:
        file: an .onnx file, a .pt2 file, or an .xml file for OpenVINO.
        threads: threads of ONNX Runtime or OpenVINO, which choose by themselves by
            default. PyTorch's are set by `torch.set_num_threads`.
        providers: execution providers of ONNX Runtime; the CPU by default.
        trust_checkpoint: load a .pt2 file, and let PyTorch run the code that it may
            contain. An .onnx file contains none.

    Raises:
        ValueError: the file has another suffix, is damaged, was not written by mmattn,
            or is a .pt2 file that is not trusted.
        ImportError: onnxruntime, openvino or torch is not installed.

    Example:
        >>> import mmattn.export
        >>> runner = mmattn.export.load('model.onnx')  # doctest: +SKIP
        >>> runner('image.jpg').above(0.5).boxes  # doctest: +SKIP
    """
    file = Path(file)
    if file.suffix not in FORMATS:
        raise UserError(f'the file must end with one of {FORMATS}, got {file}')
    if not file.is_file():
        raise FileNotFoundError(f'{file} does not exist')
    if file.suffix == '.onnx':
        return Runner(*_open_onnx(file, threads, providers or PROVIDERS))
    if file.suffix == '.xml' and providers is None:
        return Runner(*_open_openvino(file, threads))
    if threads is not None or providers is not None:
        raise UserError(
            '`threads` and `providers` are for .onnx files, `threads` also for .xml '
            f'files, got {file}'
        )
    return Runner(*_open_pt2(file, trust_checkpoint))


def _metadata(text: str | None, file: Path) -> Metadata:
    if not text:
        raise UserError(
            f'{file} has no metadata of mmattn; `mmattn export` writes files that do'
        )
    try:
        return Metadata.from_json(text)
    except ValueError as error:
        raise UserError(f'{file}: {error}') from error


def _open_onnx(file: Path, threads: int | None, providers: Sequence[str]):
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError(
            f'{file} requires ONNX Runtime: pip install onnxruntime'
        ) from error
    _check_threads(threads)
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(str(file), options, list(providers))
        text = session.get_modelmeta().custom_metadata_map.get(KEY)
    except Exception as error:  # ONNX Runtime's errors have no common base
        reason = ' '.join(str(error).split())
        raise UserError(f'ONNX Runtime cannot load {file}: {reason}') from error
    metadata = _metadata(text, file)
    inputs = [(x.name, x.type, tuple(x.shape)) for x in session.get_inputs()]
    outputs = [(x.name, tuple(x.shape)) for x in session.get_outputs()]
    _check_graph(inputs, outputs, metadata, file)

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        return session.run(None, dict(zip(metadata.inputs, inputs, strict=True)))

    return run, metadata


def _open_openvino(file: Path, threads: int | None):
    _check_threads(threads)
    if not file.with_suffix('.bin').is_file():
        raise FileNotFoundError(
            f'{file.with_suffix(".bin")} does not exist, which has the weights of '
            f'{file.name}'
        )
    try:
        model = read_ir(file)
        text = metadata_text(model)
        inputs, outputs = ports_of(model)
        run = session_of(compiled(model, threads))
    except RuntimeError as error:
        reason = ' '.join(str(error).split())
        raise UserError(f'OpenVINO cannot load {file}: {reason}') from error
    metadata = _metadata(text, file)
    _check_graph(inputs, outputs, metadata, file)
    return run, metadata


def _check_threads(threads: int | None):
    if threads is not None and threads < 1:
        raise UserError(f'`threads` must be positive, got {threads}')


def _check_graph(inputs: list, outputs: list, metadata: Metadata, file: Path):
    """Raise a ValueError unless a graph's inputs and outputs are those described.

    Args:
        inputs: name, type and shape of each input, in the words of ONNX Runtime.
        outputs: name and shape of each output.
        metadata: the description in the file.
        file: path for the message.
    """
    B, (H, W) = metadata.batch, metadata.shape
    kind = {'float32': 'tensor(float)', 'uint8': 'tensor(uint8)'}
    expected = [('image', kind[metadata.input_dtype], (B, metadata.channels, H, W))]
    if 'image_size' in metadata.inputs:
        expected.append(('image_size', 'tensor(int64)', (B, 2)))
    if len(inputs) != len(expected) or not all(map(_fits, inputs, expected)):
        raise UserError(f'{file} has the inputs {inputs}, and its metadata {expected}')
    names = [name for name, _ in outputs]
    if names != metadata.outputs:
        raise UserError(
            f'{file} has the outputs {names}, and its metadata {metadata.outputs}'
        )
    _check_classes(outputs[0][1], metadata, file)


def _check_classes(shape: Sequence, metadata: Metadata, file: Path):
    try:
        metadata.check_classes(shape)
    except ValueError as error:
        raise UserError(f'{file}: {error}') from error


def _fits(found: tuple, expected: tuple) -> bool:
    """Return whether an input has a name, type and shape; a symbol fits every side."""
    if found[:2] != expected[:2] or len(found[2]) != len(expected[2]):
        return False
    sides = zip(found[2], expected[2], strict=True)
    return all(not isinstance(side, int) or side == other for side, other in sides)


def _open_pt2(file: Path, trust_checkpoint: bool):
    try:
        with ZipFile(file) as archive:
            text = _described(archive)
    except UNREADABLE as error:
        raise UserError(f'{file} is no torch.export program: {error}') from error
    metadata = _metadata(text, file)
    if not trust_checkpoint:
        raise UserError(
            f'{file} is refused: PyTorch runs code that a .pt2 file may contain. If '
            'you trust the author of the file, pass --trust-checkpoint '
            '(trust_checkpoint=True in Python). An .onnx file contains no code'
        )
    import torch
    import torchvision  # noqa: F401  registers its operators

    import mmattn.ops  # noqa: F401  registers ours

    from .write import first_output

    try:
        program = torch.export.load(file)
        module, shape = program.module(), first_output(program).shape
    except Exception as error:  # torch.export's errors have no common base
        raise UserError(f'torch.export cannot load {file}: {error}') from error
    _check_classes(shape, metadata, file)

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            return [out.numpy() for out in module(*map(torch.from_numpy, inputs))]

    return run, metadata


def _described(archive: ZipFile) -> str | None:
    """Return the metadata of a .pt2 file after a check of all its entries."""
    if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
        raise BadZipFile('it has compressed entries, which torch.export does not write')
    if damaged := archive.testzip():
        raise BadZipFile(f'its entry {damaged} is damaged')
    names = [name for name in archive.namelist() if name.endswith(f'/extra/{PT2_FILE}')]
    return archive.read(names[0]).decode() if names else None


class Runner:
    """Prepare images, run a model on them, and return what it found in them.

    Images are resized, padded and normalized as the test pipeline of the config does.
    A graph of a fixed size gets no larger images: those that the pipeline makes larger
    are shrunk to fit. With 800 x 1333, a portrait of 640 x 480 becomes 800 x 600, where
    the pipeline makes 1067 x 800 of it. A dynamic size, or 1333 x 1333, keeps the sizes
    of the pipeline.

    Args:
        run: maps the arrays of the graph's inputs to its output arrays.
        metadata: how images are prepared.

    Attributes:
        metadata: the description in the file.
    """

    def __init__(self, run: Callable[..., list[np.ndarray]], metadata: Metadata):
        if metadata.resize is not None:
            kinds = metadata.resize['interpolation'], metadata.resize['backend']
            check_interpolation(*kinds)
        self.run = run
        self.metadata = metadata

    def __call__(self, images) -> Result | list[Result]:
        """Return the result of an image, or of each image of a list.

        Args:
            images: an image or a list of images. An image is a path, a PIL image, or a
                uint8 array of shape (H, W, 3) in RGB. Files and PIL images are turned
                as their EXIF orientation says.

        Returns:
            `Detections`, `Segmentation`, `Classification`, or for a backbone the list
            of its feature maps, each of shape (C, H, W).

        Raises:
            ValueError: an image cannot be read.
        """
        if isinstance(images, (str, Path, Image.Image, np.ndarray)):
            return self([images])[0]
        if not isinstance(images, (list, tuple)):
            raise UserError(
                f'`images` must be an image or a list, got {type(images).__name__}'
            )
        results = []
        for start in range(0, len(images), self.batch):
            chunk = images[start : start + self.batch]
            prepared = [prepare(read(x, self.metadata), self.metadata) for x in chunk]
            for image, result in zip(chunk, self._batch(prepared), strict=True):
                if isinstance(image, (str, Path)) and not isinstance(result, list):
                    result.source = str(image)
                results.append(result)
        return results

    @property
    def batch(self) -> int:
        """Return how many images the graph takes at a time.

        A graph of dynamic size takes one: each image has its own size.
        """
        metadata = self.metadata
        takes_any = metadata.dynamic is not None and 'image_size' not in metadata.inputs
        return 1 if takes_any else metadata.batch

    def _batch(self, images: list[Prepared]) -> list[Result]:
        # The last batch may have fewer images than a fixed graph.
        filled = images + [images[-1]] * (self.batch - len(images))
        inputs = [stack(filled, self.metadata)]
        if 'image_size' in self.metadata.inputs:
            inputs.append(np.array([each.size for each in filled], np.int64))
        try:
            outputs = self.run(*inputs)
        except Exception as error:  # the runtimes' errors have no common base
            raise UserError(
                f'the graph fails with images of shape {inputs[0].shape}: {error}'
            ) from error
        check_outputs(outputs, inputs[0].shape, self.metadata)
        rows = [[out[i] for out in outputs] for i in range(len(images))]
        return [self._result(*pair) for pair in zip(rows, images, strict=True)]

    def _result(self, outputs: list[np.ndarray], image: Prepared) -> Result:
        metadata = self.metadata
        if metadata.task == 'detection':
            return detections(outputs, image, metadata)
        if metadata.task == 'segmentation':
            return segmentation(outputs, image, metadata)
        if metadata.task == 'classification':
            return Classification(outputs[0], metadata.classes, size=image.original)
        return outputs
