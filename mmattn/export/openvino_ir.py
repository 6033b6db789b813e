"""Convert ONNX files to OpenVINO's format (IR), and run it.

An IR is a pair of files: an .xml with the graph and a .bin with the weights. The .xml
has our metadata. Nothing here imports PyTorch.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from mmattn.errors import MissingPackageError

from .errors import ExportError
from .metadata import KEY, Metadata

# Some processors would compute in bfloat16 by default.
SETTINGS = {'INFERENCE_PRECISION_HINT': 'f32'}
# Types of inputs, in the words of ONNX Runtime.
TYPES = {'f32': 'tensor(float)', 'u8': 'tensor(uint8)', 'i64': 'tensor(int64)'}


class IR(NamedTuple):
    """The content of the two files."""

    xml: bytes
    weights: bytes


def openvino_package():
    """Return the package `openvino`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import openvino
    except ImportError as error:
        raise MissingPackageError(
            'OpenVINO is not installed: pip install openvino'
        ) from error
    return openvino


def convert(content: bytes, metadata: Metadata) -> IR:
    """Return the IR of an ONNX file, in float32.

    Raises:
        ExportError: OpenVINO does not support the file.
    """
    try:
        model = openvino_package().Core().read_model(content)
    except RuntimeError as error:
        raise ExportError(f'OpenVINO cannot convert the model: {error}') from error
    return with_metadata(model, metadata)


def read_ir(ir: IR | Path):
    """Return the model of an IR, or of the path of its .xml file."""
    core = openvino_package().Core()
    return core.read_model(*ir) if isinstance(ir, IR) else core.read_model(ir)


def with_metadata(model, metadata: Metadata) -> IR:
    """Return the IR of a model, with our description of it."""
    model.set_rt_info(metadata.to_json(), KEY)
    with TemporaryDirectory() as folder:
        path = Path(folder, 'model.xml')
        openvino_package().save_model(model, path, compress_to_fp16=False)
        return IR(path.read_bytes(), path.with_suffix('.bin').read_bytes())


def metadata_text(model) -> str | None:
    """Return the metadata in a model that was read, None without."""
    return str(model.get_rt_info(KEY).value) if model.has_rt_info(KEY) else None


def ports_of(model) -> tuple[list, list]:
    """Return name, type and shape of each input, and name and shape of each output.

    A dynamic side is None.
    """

    def shape(port):
        sides = port.get_partial_shape()
        return tuple(x.get_length() if x.is_static else None for x in sides)

    def kind(port):
        name = port.get_element_type().get_type_name()
        return TYPES.get(name, name)

    inputs = [(x.get_any_name(), kind(x), shape(x)) for x in model.inputs]
    return inputs, [(x.get_any_name(), shape(x)) for x in model.outputs]


def compiled(model, threads: int | None = None):
    """Return a model compiled for the CPU, which computes in float32.

    OpenVINO chooses the number of threads by default.
    """
    count = {} if threads is None else {'INFERENCE_NUM_THREADS': threads}
    return openvino_package().Core().compile_model(model, 'CPU', SETTINGS | count)


def session_of(model) -> Callable[..., list[np.ndarray]]:
    """Return a function that runs a compiled model, from arrays to arrays."""
    return lambda *inputs: list(model(dict(enumerate(inputs))).values())
