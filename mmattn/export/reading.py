"""Open exported files by the runtime of each format, and check what is in them.

Only .pt2 files need PyTorch. Each function returns a function that runs the file, from
arrays to arrays, and the file's metadata. They raise a ValueError for a file that is
damaged or that mmattn did not write.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from mmattn.errors import UserError, import_optional

from .metadata import KEY, PT2_FILE, Metadata

Opened = tuple[Callable[..., list[np.ndarray]], Metadata]
PROVIDERS = ('CPUExecutionProvider',)
# Some processors would compute in bfloat16 by default.
FLOAT32 = {'INFERENCE_PRECISION_HINT': 'f32'}
# Types of OpenVINO's inputs, in the words of ONNX Runtime.
TYPES = {'f32': 'tensor(float)', 'u8': 'tensor(uint8)', 'i64': 'tensor(int64)'}
# Errors of zipfile for damaged archives.
UNREADABLE = (BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError)


def open_onnx(
    file: Path, threads: int | None, providers: Sequence[str] | None
) -> Opened:
    """Open an ONNX file."""
    message = f'{file} requires ONNX Runtime: pip install onnxruntime'
    onnxruntime = import_optional(message, 'onnxruntime')
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    providers = list(providers or PROVIDERS)
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers)
        text = session.get_modelmeta().custom_metadata_map.get(KEY)
    except Exception as error:  # ONNX Runtime's errors have no common base
        raise UserError(f'ONNX Runtime cannot load it: {_line(error)}') from error
    metadata = Metadata.from_json(text)
    inputs = [(x.name, x.type, tuple(x.shape)) for x in session.get_inputs()]
    outputs = [(x.name, tuple(x.shape)) for x in session.get_outputs()]
    _check_graph(inputs, outputs, metadata)
    names = metadata.inputs
    return lambda *x: session.run(None, dict(zip(names, x, strict=True))), metadata


def openvino_package():
    """Return the package `openvino`, or raise an ImportError."""
    message = 'OpenVINO is not installed: pip install openvino'
    return import_optional(message, 'openvino')


def open_openvino(file: Path, threads: int | None) -> Opened:
    """Open the .xml file of an OpenVINO model, beside its .bin file."""
    if not (weights := file.with_suffix('.bin')).is_file():
        raise FileNotFoundError(
            f'{weights} does not exist, which has the weights of {file.name}'
        )
    settings = FLOAT32
    if threads is not None:
        settings = FLOAT32 | dict(INFERENCE_NUM_THREADS=threads)
    core = openvino_package().Core()
    try:
        model = core.read_model(file)
        text = str(model.get_rt_info(KEY).value) if model.has_rt_info(KEY) else None
        inputs = [(x.get_any_name(), _kind(x), _shape(x)) for x in model.inputs]
        outputs = [(x.get_any_name(), _shape(x)) for x in model.outputs]
        run = core.compile_model(model, 'CPU', settings)
    except RuntimeError as error:
        raise UserError(f'OpenVINO cannot load it: {_line(error)}') from error
    metadata = Metadata.from_json(text)
    _check_graph(inputs, outputs, metadata)
    return lambda *arrays: list(run(dict(enumerate(arrays))).values()), metadata


def _shape(port) -> tuple[int | None, ...]:
    """Return the shape of an input or output; a dynamic side is None."""
    sides = port.get_partial_shape()
    return tuple(x.get_length() if x.is_static else None for x in sides)


def _kind(port) -> str:
    name = port.get_element_type().get_type_name()
    return TYPES.get(name, name)


def open_pt2(file: Path, trust_checkpoint: bool) -> Opened:
    """Open a program of torch.export, whose code runs if it is trusted."""
    try:
        with ZipFile(file) as archive:
            text = _described(archive)
    except UNREADABLE as error:
        raise UserError(f'it is no torch.export program: {error}') from error
    metadata = Metadata.from_json(text)
    if not trust_checkpoint:
        raise UserError(
            'it is refused: PyTorch runs code that a .pt2 file may contain. If '
            'you trust the author of the file, pass --trust-checkpoint '
            '(trust_checkpoint=True in Python). An .onnx file contains no code'
        )
    import torch
    import torchvision  # noqa: F401  registers its operators

    import mmattn.ops  # noqa: F401  registers ours

    from .program import first_output

    try:
        program = torch.export.load(file)
        module, shape = program.module(), first_output(program).shape
    except Exception as error:  # torch.export's errors have no common base
        raise UserError(f'torch.export cannot load it: {error}') from error
    metadata.check_classes(shape)

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


def _line(error: Exception) -> str:
    return ' '.join(str(error).split())


def _check_graph(inputs: list, outputs: list, metadata: Metadata):
    """Raise a ValueError unless a graph's inputs and outputs are those described.

    Inputs are name, type and shape, as ONNX Runtime says it; outputs name and shape.
    """
    B, (H, W) = metadata.batch, metadata.shape
    kind = {'float32': 'tensor(float)', 'uint8': 'tensor(uint8)'}
    expected = [('image', kind[metadata.input_dtype], (B, metadata.channels, H, W))]
    if metadata.per_image:
        expected.append(('image_size', 'tensor(int64)', (B, 2)))
    if len(inputs) != len(expected) or not all(map(_fits, inputs, expected)):
        raise UserError(f'it has the inputs {inputs}, and its metadata {expected}')
    names = [name for name, _ in outputs]
    if names != metadata.outputs:
        raise UserError(
            f'it has the outputs {names}, and its metadata {metadata.outputs}'
        )
    metadata.check_classes(outputs[0][1])


def _fits(found: tuple, expected: tuple) -> bool:
    """Return whether an input has a name, type and shape; a symbol fits every side."""
    if found[:2] != expected[:2] or len(found[2]) != len(expected[2]):
        return False
    sides = zip(found[2], expected[2], strict=True)
    return all(not isinstance(side, int) or side == other for side, other in sides)
