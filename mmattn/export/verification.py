"""Compare serialized graphs with PyTorch, also at other sizes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from .errors import ExportError
from .graphs.nms import EMPTY
from .inputs import prepare, read, stack
from .metadata import Metadata
from .sizes import SMALLEST, least_size, takes_the_same_branches
from .write import REFUSALS, difference

MAX_DIFFERENCE = 1e-3  # relative, of a verified file
# Relative, at other sizes than the example's, on noise. A constant of the example's
# size that is left in a graph can change the output as little as 1e-4.
MAX_DIFFERENCE_OF_SIZES = 2e-5
Session = Callable[[], Callable[..., list[Tensor]]]
OTHER_SIZES = (37, 19), (-29, -13)  # pixels that are added to height and width


def is_detector(graph: nn.Module) -> bool:
    """Return whether a graph takes the sizes of images without padding."""
    return 'image_size' in graph.input_names


def example_inputs(graph: nn.Module, metadata: Metadata) -> tuple[Tensor, ...]:
    """Return images of noise, and their sizes if the graph takes them."""
    # torch.export takes a batch of 1 for a constant.
    is_fixed = metadata.dynamic is None or is_detector(graph)
    batch = metadata.batch if is_fixed else max(2, metadata.batch)
    return _noise(graph, metadata, batch, metadata.shape)


def other_inputs(graph: nn.Module, metadata: Metadata) -> Iterator[tuple[Tensor, ...]]:
    """Yield inputs of other sizes than the example's, if sizes are dynamic."""
    (H, W), batch = metadata.shape, metadata.batch
    batches = (batch, batch) if is_detector(graph) else (max(2, batch) + 1, 1)
    for count, (dy, dx) in zip(batches, OTHER_SIZES, strict=True):
        if metadata.dynamic == 'size':
            least = min(H, W, SMALLEST)
            yield _noise(
                graph, metadata, count, (max(H + dy, least), max(W + dx, least))
            )
        elif metadata.dynamic == 'batch':
            yield _noise(graph, metadata, count, (H, W))


def least_valid_size(
    program: ExportedProgram,
    inputs: Sequence[Tensor],
    session: Session,
    graph: nn.Module,
    metadata: Metadata,
) -> list[int]:
    """Return the least height and width for which a file of dynamic size is valid.

    Args:
        program: the exported graph.
        inputs: the example that it was exported with.
        session, graph: see `verify_session`.
        metadata: how images are prepared for the graph.
    """
    if is_detector(graph):
        is_valid = takes_the_same_branches(program, inputs)
        return list(least_size(metadata.shape, is_valid))

    def is_valid(height: int, width: int) -> bool:
        noise = _noise(graph, metadata, len(inputs[0]), (height, width))
        try:
            verify_session(session, graph, [noise], MAX_DIFFERENCE_OF_SIZES)
        except REFUSALS:
            return False
        return True

    return list(least_size(metadata.shape, is_valid))


def _noise(graph, metadata, batch, shape):
    size = (batch, metadata.channels, *shape)
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
    prepared = [prepare(read(image, metadata), metadata)] * metadata.batch
    inputs = (torch.from_numpy(stack(prepared, metadata)),)
    if 'image_size' in graph.input_names:
        inputs += (torch.tensor([each.size for each in prepared]),)
    return inputs


def verify_session(
    session: Session,
    graph: nn.Module,
    batches: Iterable[Sequence[Tensor]],
    at_most: float = MAX_DIFFERENCE,
) -> float:
    """Return the largest difference between a serialized graph and PyTorch.

    Args:
        session: returns what runs the serialized graph, see `open_session`.
        graph: the graph that was exported.
        batches: inputs of the graph.
        at_most: difference that is accepted, over the largest value of an output.

    Raises:
        ExportError: an output differs by more, or the serialized graph cannot run.
    """
    largest = 0.0
    for inputs in batches:
        with torch.no_grad():
            expected = graph(*inputs)
        shape = tuple(inputs[0].shape)
        try:
            outputs = session()(*inputs)
        except Exception as error:  # ONNX Runtime's errors have no common base
            raise ExportError(
                f'the exported model fails with images of shape {shape}: {error}'
            ) from error
        names = graph.output_names or [f'feature{i}' for i in range(len(expected))]
        if is_detector(graph):
            names = 'boxes', 'scores', *names[1:]
            outputs = boxes_and_scores(in_order_of(expected, outputs))
            expected = boxes_and_scores(expected)
        for name, *pair in zip(names, outputs, expected, strict=True):
            found = difference(*pair)
            # Rounding may change the class of a pixel where two nearly tie.
            is_label = not pair[1].is_floating_point()
            if not found <= max(at_most, MAX_DIFFERENCE * is_label):
                raise ExportError(
                    f'{name} of the exported model differs from PyTorch by '
                    f'{found:.1e} of its largest value with images of shape {shape}; '
                    f'at most {at_most} is accepted'
                )
            largest = max(largest, found)
    return largest


def boxes_and_scores(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the boxes and scores of a detector apart, as both have their own scale."""
    dets, *others = outputs
    return [dets[..., :4], dets[..., 4], *others]


def in_order_of(
    expected: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Return detections in the order of the expected ones.

    Rounding may swap two whose scores nearly tie. An order that is not found is kept.

    Args:
        expected: boxes with scores (B, K, 5), labels (B, K) and others (B, K, ...).
        outputs: tensors of the same meaning.
    """
    if any(x.shape != y.shape for x, y in zip(expected, outputs, strict=True)):
        return outputs
    ordered = [out.clone() for out in outputs]
    for i, (dets, labels) in enumerate(zip(*expected[:2], strict=True)):
        count = int((labels != EMPTY).sum())
        if count == 0:
            continue
        found, found_labels = outputs[0][i, :count], outputs[1][i, :count]
        distance = torch.cdist(dets[:count], found, p=torch.inf)
        is_other = labels[:count, None] != found_labels
        order = distance.masked_fill(is_other, torch.inf).argmin(1)
        if count == len(order.unique()):
            for out, unordered in zip(ordered, outputs, strict=True):
                out[i, :count] = unordered[i, order]
    return ordered
