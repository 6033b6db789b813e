"""Export graphs, serialize them, and run what was serialized."""

import io
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram

from .decomposition_table import ADAPTIVE_POOL
from .errors import ExportError
from .metadata import KEY, PT2_FILE, Metadata
from .openvino_ir import IR, compiled, convert, read_ir, session_of, with_metadata

OPSET = 20
FORMATS = ('onnx', 'pt2', 'openvino')
MAX_REASON = 600  # characters of PyTorch's message
# torch.export raises these for models and sizes that it does not support.
REFUSALS = (UserError, RuntimeError, ValueError, AssertionError)


def export_program(
    graph: nn.Module, inputs: Sequence[Tensor], dynamic: str | None = None
) -> ExportedProgram:
    """Export a graph whose batch or size may vary.

    Args:
        graph: see `mmattn.export.graphs`.
        inputs: an example of each input.
        dynamic: None, 'batch', or 'size' for batch, height and width. Graphs that take
            `image_size` keep their batch.

    Raises:
        ExportError: PyTorch cannot export the graph this way.
    """
    shapes = dynamic_shapes(graph, dynamic)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(graph, tuple(inputs), dynamic_shapes=shapes)
    except REFUSALS as error:
        what = f'with dynamic {dynamic}' if dynamic else 'with fixed sizes'
        raise ExportError(
            f'torch.export cannot export the model {what}: {_reason(error)}'
        ) from error
    for module in program.graph_module.modules():
        for node in module.graph.nodes:
            node.meta.pop('stack_trace', None)  # it has paths of this machine
    return program


def dynamic_shapes(graph: nn.Module, dynamic: str | None) -> tuple | None:
    """Return the dynamic shapes of a graph's inputs for torch.export."""
    if dynamic is None:
        return None
    per_image = 'image_size' in graph.input_names
    if per_image and dynamic == 'batch':
        raise ExportError(
            'the batch of a detector is fixed, since each image has its own detections;'
            ' pass `batch`'
        )
    variable = torch.export.Dim.DYNAMIC
    axes = {} if per_image else {0: variable}
    if dynamic == 'size':
        axes |= {2: variable, 3: variable}
    return (axes, *({} for _ in graph.input_names[1:]))


def first_output(program: ExportedProgram) -> Tensor:
    """Return a tensor without content that has the shape of the first output."""
    outputs = program.graph.output_node().args[0]
    return outputs[0].meta['val']


def serialize(program: ExportedProgram, metadata: Metadata, format: str) -> bytes | IR:
    """Return the content of a file with the program and its metadata.

    Raises:
        ExportError: the ONNX exporter or OpenVINO does not support the program.
    """
    if format == 'onnx':
        return _onnx(program, metadata)
    if format == 'openvino':
        return convert(_onnx(program, metadata), metadata)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={PT2_FILE: metadata.to_json()})
    return file.getvalue()


def _onnx(program: ExportedProgram, metadata: Metadata) -> bytes:
    import onnx
    from onnx_ir.passes import PassError

    if any('adaptive_avg_pool2d' in str(node.target) for node in program.graph.nodes):
        program = program.run_decompositions(ADAPTIVE_POOL)
    try:
        with _quiet():
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
            f'torch.onnx cannot convert the model: {_reason(error)}'
        ) from error
    for graph in (exported.model.graph, *exported.model.functions.values()):
        for node in graph.all_nodes():
            node.metadata_props.pop('pkg.torch.onnx.stack_trace', None)
    exported.model.metadata_props[KEY] = metadata.to_json()
    model = exported.model_proto
    onnx.checker.check_model(model)
    return model.SerializeToString()


def described(
    content: bytes | IR, program: ExportedProgram, metadata: Metadata, format: str
) -> bytes | IR:
    """Return the content of a program's file with other metadata."""
    if format == 'pt2':
        return serialize(program, metadata, format)
    if format == 'openvino':
        return with_metadata(read_ir(content), metadata)
    import onnx

    model = onnx.load_from_string(content)
    (entry,) = (each for each in model.metadata_props if each.key == KEY)
    entry.value = metadata.to_json()
    return model.SerializeToString()


def open_session(content: bytes | IR, format: str) -> Callable[..., list[Tensor]]:
    """Return a function that runs serialized content, from tensors to tensors."""
    if format == 'pt2':
        program = torch.export.load(io.BytesIO(content)).module()
        return lambda *inputs: list(program(*inputs))
    if format == 'openvino':
        run = session_of(compiled(read_ir(content), torch.get_num_threads()))
        return lambda *inputs: [
            torch.from_numpy(out) for out in run(*(x.numpy() for x in inputs))
        ]
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        content, options, providers=['CPUExecutionProvider']
    )
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        feed = {k: v.numpy() for k, v in zip(names, inputs, strict=True)}
        return [torch.from_numpy(out) for out in session.run(None, feed)]

    return run


def difference(output: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected value.

    For integers it is the share of elements that differ.

    Raises:
        ExportError: the shapes differ.
    """
    if output.shape != expected.shape:
        raise ExportError(
            f'an output of the exported model has the shape {tuple(output.shape)}, but '
            f'the output of PyTorch has {tuple(expected.shape)}'
        )
    if not expected.is_floating_point():
        return (output != expected).double().mean().item()
    largest = expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny)
    return ((output - expected).abs().max() / largest).item()


def _reason(error: Exception) -> str:
    """Return the cause that started a chain of errors, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = ' '.join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + '...'


@contextmanager
def _quiet():
    """Hide what a user cannot act on.

    onnxscript notes operators that no model here uses. torchvision's `nms` calls a
    function that PyTorch 2.14 deprecates.
    """
    logger = logging.getLogger('torch.onnx')
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                'ignore', '`create_unbacked_symint`', FutureWarning, 'torchvision'
            )
            yield
    finally:
        logger.setLevel(level)
