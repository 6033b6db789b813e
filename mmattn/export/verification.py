"""Compare exported files with PyTorch, also at other sizes."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from .errors import ExportError
from .graphs.nms import EMPTY
from .inputs import prepare, stack
from .metadata import Metadata
from .program import REFUSALS
from .runner import Runner

MAX_DIFFERENCE = 1e-3  # relative, of a verified file
# Relative, at other sizes than the example's, on noise. A constant of the example's
# size that is left in a graph can change the output as little as 1e-4.
MAX_DIFFERENCE_OF_SIZES = 2e-5
OTHER_SIZES = (37, 19), (-29, -13)  # pixels that are added to height and width
SMALLEST = 32  # pixels; smaller images are not tried


def example_inputs(metadata: Metadata) -> tuple[Tensor, ...]:
    """Return images of noise, and their sizes if the graph takes them."""
    # torch.export takes a batch of 1 for a constant.
    is_fixed = metadata.dynamic is None or metadata.per_image
    batch = metadata.batch if is_fixed else max(2, metadata.batch)
    return _noise(metadata, batch, metadata.shape)


def other_inputs(metadata: Metadata) -> Iterator[tuple[Tensor, ...]]:
    """Yield inputs of other sizes than the example's, if sizes are dynamic."""
    (H, W), batch = metadata.shape, metadata.batch
    batches = (batch, batch) if metadata.per_image else (max(2, batch) + 1, 1)
    for count, (dy, dx) in zip(batches, OTHER_SIZES, strict=True):
        if metadata.dynamic == 'size':
            least = min(H, W, SMALLEST)
            yield _noise(metadata, count, (max(H + dy, least), max(W + dx, least)))
        elif metadata.dynamic == 'batch':
            yield _noise(metadata, count, (H, W))


def _noise(metadata: Metadata, batch: int, shape: Sequence[int]) -> tuple[Tensor, ...]:
    size = (batch, metadata.channels, *shape)
    generator = torch.Generator().manual_seed(0)
    if metadata.normalized:
        image = torch.randint(0, 256, size, generator=generator)
        image = image.to(getattr(torch, metadata.input_dtype))
    else:
        image = torch.randn(size, generator=generator)
    return inputs_of(image, metadata)


def inputs_of(image: Tensor | str | Path, metadata: Metadata) -> tuple[Tensor, ...]:
    """Return the inputs of a graph for a batch, or for an image as the runner does."""
    if isinstance(image, Tensor):
        sizes = [image.shape[-2:]] * len(image)
    else:
        prepared = [prepare(image, metadata)] * metadata.batch
        sizes = [each.size for each in prepared]
        image = torch.from_numpy(stack(prepared, metadata))
    return (image, torch.tensor(sizes)) if metadata.per_image else (image,)


def verify(
    runner: Runner,
    graph: nn.Module,
    batches: Iterable[Sequence[Tensor]],
    at_most: float = MAX_DIFFERENCE,
):
    """Compare the outputs of an exported file with those of its graph in PyTorch.

    Args:
        at_most: difference that is accepted, over the largest value of an output.

    Raises:
        ExportError: an output differs by more, or the file cannot run.
    """
    for inputs in batches:
        with torch.no_grad():
            expected = graph(*inputs)
        shape = tuple(inputs[0].shape)
        try:
            outputs = runner.run(*(x.numpy() for x in inputs))
        except Exception as error:  # ONNX Runtime's errors have no common base
            raise ExportError(
                f'the exported model fails with images of shape {shape}: {error}'
            ) from error
        names, outputs = runner.metadata.outputs, list(map(torch.from_numpy, outputs))
        if runner.metadata.per_image:
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


def boxes_and_scores(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the boxes and scores of a detector apart, as both have their own scale."""
    dets, *others = outputs
    return [dets[..., :4], dets[..., 4], *others]


def in_order_of(
    expected: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Return detections in the order of the expected ones.

    Rounding may swap two whose scores nearly tie. An order that is not found is kept.
    Both are boxes with scores (B, K, 5), labels (B, K) and others (B, K, ...).
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


def least_valid_size(
    program: ExportedProgram,
    inputs: Sequence[Tensor],
    runner: Runner,
    graph: nn.Module,
) -> list[int]:
    """Return the least height and width for which a file of dynamic size is valid.

    torch.export takes the branches that the size of its example, `inputs`, takes. An
    ONNX file does not check that the size of an image takes them, too.
    """
    metadata = runner.metadata
    if metadata.per_image:
        return least_size(metadata.shape, takes_the_same_branches(program, inputs))

    def is_valid(height: int, width: int) -> bool:
        noise = _noise(metadata, len(inputs[0]), (height, width))
        try:
            verify(runner, graph, [noise], MAX_DIFFERENCE_OF_SIZES)
        except REFUSALS:
            return False
        return True

    return least_size(metadata.shape, is_valid)


def least_size(shape: Sequence[int], is_valid: Callable[[int, int], bool]) -> list[int]:
    """Return the least height and width from which on a file is valid.

    Both are the same number, but at most the side of the example, whose `shape` is a
    height and width.
    """
    H, W = shape

    def clipped(side: int) -> list[int]:
        return [min(side, H), min(side, W)]

    if max(H, W) <= SMALLEST or is_valid(*clipped(SMALLEST)):
        return clipped(SMALLEST)
    sides = range(SMALLEST + 1, max(H, W))
    found = bisect_left(sides, True, key=lambda side: is_valid(*clipped(side)))
    return clipped(SMALLEST + 1 + found)


def takes_the_same_branches(
    program: ExportedProgram, inputs: Sequence[Tensor]
) -> Callable[[int, int], bool]:
    """Return a function that tells whether a size takes the branches of the example.

    The program has a dynamic height and width, and the first input is the image.
    """
    image, *others = (x.to('meta') for x in inputs)
    check = program.module()._guards_fn

    def takes_them(height: int, width: int) -> bool:
        try:
            check(image.new_empty(*image.shape[:2], height, width), *others)
        except AssertionError:
            return False
        return True

    return takes_them
