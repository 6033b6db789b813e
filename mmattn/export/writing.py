"""Write programs of torch.export as files, by the functions of each format."""

import io
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram

from .choices import SUFFIXES
from .decomposition_table import ADAPTIVE_POOL
from .errors import ExportError
from .metadata import KEY, PT2_FILE, Metadata
from .program import quiet, reason_of
from .reading import openvino_package
from .runner import Runner, load

OPSET = 20


class Format(NamedTuple):
    """How a program becomes files.

    Attributes:
        suffix: of the file that `load` takes.
        files: returns the files of an export; without the last one it is not complete.
        convert: returns what is written of a program, before its metadata are known.
        content: returns the content of each file, with the metadata.
    """

    suffix: str
    files: Callable[[Path], list[Path]]
    convert: Callable[[ExportedProgram, Metadata], Any]
    content: Callable[[Any, Metadata], list[bytes]]

    def runner(self, content: list[bytes]) -> Runner:
        """Return a runner of files with this content, with the threads of PyTorch."""
        settings = dict(threads=torch.get_num_threads())
        if self.suffix == '.pt2':
            settings = dict(trust_checkpoint=True)
        with TemporaryDirectory() as folder:
            file = Path(folder, f'model{self.suffix}')
            for path, part in zip(self.files(file), content, strict=True):
                path.write_bytes(part)
            return load(file, **settings)


def convert_onnx(program: ExportedProgram, metadata: Metadata):
    """Return the ONNX model of a program.

    Raises:
        ExportError: the ONNX exporter does not support the program.
    """
    import onnx
    from onnx_ir.passes import PassError

    if any('adaptive_avg_pool2d' in str(node.target) for node in program.graph.nodes):
        program = program.run_decompositions(ADAPTIVE_POOL)
    try:
        with quiet():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=metadata.inputs,
                output_names=metadata.outputs,
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, PassError) as error:
        raise ExportError(
            f'torch.onnx cannot convert the model: {reason_of(error)}'
        ) from error
    for graph in (exported.model.graph, *exported.model.functions.values()):
        for node in graph.all_nodes():
            node.metadata_props.pop('pkg.torch.onnx.stack_trace', None)
    onnx.checker.check_model(exported.model_proto)
    return exported.model_proto


def onnx_content(model, metadata: Metadata) -> list[bytes]:
    """Return the content of an ONNX file."""
    import onnx

    onnx.helper.set_model_props(model, {KEY: metadata.to_json()})
    return [model.SerializeToString()]


def convert_openvino(program: ExportedProgram, metadata: Metadata):
    """Return the OpenVINO model of a program, in float32.

    Raises:
        ExportError: the ONNX exporter or OpenVINO does not support the program.
    """
    model = convert_onnx(program, metadata).SerializeToString()
    try:
        return openvino_package().Core().read_model(model)
    except RuntimeError as error:
        raise ExportError(f'OpenVINO cannot convert the model: {error}') from error


def openvino_content(model, metadata: Metadata) -> list[bytes]:
    """Return the content of a .bin and an .xml file."""
    model.set_rt_info(metadata.to_json(), KEY)
    with TemporaryDirectory() as folder:
        path = Path(folder, 'model.xml')
        openvino_package().save_model(model, path, compress_to_fp16=False)
        return [path.with_suffix('.bin').read_bytes(), path.read_bytes()]


def pt2_content(program: ExportedProgram, metadata: Metadata) -> list[bytes]:
    """Return the content of a .pt2 file and of the JSON file beside it."""
    file, text = io.BytesIO(), metadata.to_json()
    torch.export.save(program, file, extra_files={PT2_FILE: text})
    return [file.getvalue(), text.encode()]


FORMATS = {
    'onnx': Format(SUFFIXES['onnx'], lambda out: [out], convert_onnx, onnx_content),
    'pt2': Format(
        SUFFIXES['pt2'],
        lambda out: [out, Path(f'{out}.json')],
        lambda program, _: program,
        pt2_content,
    ),
    'openvino': Format(
        SUFFIXES['openvino'],
        lambda out: [out.with_suffix('.bin'), out],
        convert_openvino,
        openvino_content,
    ),
}
