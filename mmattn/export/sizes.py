"""The least size of images for which a file of dynamic size is valid.

torch.export takes the branches that the example's size takes. An ONNX file does not
check that the size of an image takes them, too.
"""

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.export import ExportedProgram

SMALLEST = 32  # pixels; smaller images are not tried


def least_size(
    shape: Sequence[int], is_valid: Callable[[int, int], bool]
) -> tuple[int, int]:
    """Return the least height and width from which on a file is valid.

    Both are the same number, but at most the side of the example.

    Args:
        shape: height and width of the example.
        is_valid: whether the file is valid for a height and width.
    """
    H, W = shape

    def clipped(side: int) -> tuple[int, int]:
        return min(side, H), min(side, W)

    invalid, valid = SMALLEST, max(H, W)
    if invalid >= valid or is_valid(*clipped(invalid)):
        return clipped(invalid)
    while valid - invalid > 1:
        middle = (invalid + valid) // 2
        if is_valid(*clipped(middle)):
            valid = middle
        else:
            invalid = middle
    return clipped(valid)


def takes_the_same_branches(
    program: ExportedProgram, inputs: Sequence[Tensor]
) -> Callable[[int, int], bool]:
    """Return a function that tells whether a size takes the branches of the example.

    Args:
        program: a program of dynamic height and width.
        inputs: the example, whose first is the image.
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
