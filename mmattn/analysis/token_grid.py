"""Find the grid of an image that tokens stand on."""

from collections.abc import Sequence

PREFIX_TOKENS = (0, 1, 2, 5)  # none, class, class and distillation, class and registers

STRIDES = (1, 2, 4, 8, 14, 16, 32, 64)


def possible_grids(image_size: Sequence[int]) -> list[tuple[int, int]]:
    """Return the grids that usual strides make of an image, fine to coarse.

    Both sides of a grid are rounded up, or both are rounded down.
    """
    H, W = image_size
    grids = {}
    for stride in STRIDES:
        grids[-(-H // stride), -(-W // stride)] = None
        grids[H // stride, W // stride] = None
    return list(grids)


def token_grid(
    num_tokens: int, image_size: Sequence[int]
) -> tuple[int, int, int] | None:
    """Return prefix tokens, height and width of a sequence, or None if it is no grid.

    Up to 5 tokens, such as a class token, may stand before the grid, whose tokens are
    in row-major order.
    """
    for prefix in PREFIX_TOKENS:
        for height, width in possible_grids(image_size):
            if prefix + height * width == num_tokens:
                return prefix, height, width
    return None
