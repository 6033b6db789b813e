"""Export graphs as programs of torch.export."""

import logging
import warnings
from collections.abc import Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram

from .errors import ExportError

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
        with torch.no_grad(), quiet():
            program = torch.export.export(graph, tuple(inputs), dynamic_shapes=shapes)
    except REFUSALS as error:
        what = f'with dynamic {dynamic}' if dynamic else 'with fixed sizes'
        raise ExportError(
            f'torch.export cannot export the model {what}: {reason_of(error)}'
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


def reason_of(error: Exception) -> str:
    """Return the cause that started a chain of errors, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = ' '.join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + '...'


@contextmanager
def quiet():
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
