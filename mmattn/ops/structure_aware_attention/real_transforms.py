"""Transforms over a grid as products with real matrices, for exported graphs.

Many runtimes support neither complex numbers nor transforms. In ONNX Runtime these
products are faster than `DFT`, see the README.

Spectra have real and imaginary parts as an axis of 2 before the grid's axes: (..., 2,
*grid[:-1], grid[-1] // 2 + 1). Sides may be symbolic.
"""

from math import prod

import torch
from torch import Tensor

from .spectrum import column_weights, waves


def rfft_parts(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the parts of the half-spectrum of real values (..., *grid)."""
    lead, (*rows, width) = x.shape[: -len(grid)], grid
    columns = width // 2 + 1
    cos, sin = waves(width, columns, x)
    x = x @ torch.cat([cos, -sin]).mT
    for i, side in reversed(list(enumerate(rows))):
        cos, sin = waves(side, side, x)
        top, bottom = torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)
        matrix = torch.cat([top.flatten(1), bottom.flatten(1)])  # to (2, side)
        rest = prod(rows[i + 1 :]) * columns
        x = matrix @ x.reshape(*lead, *rows[:i], 2 * side, rest)
    return x.reshape(*lead, 2, *rows, columns)


def irfft_parts(parts: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the real values (..., *grid) of the parts of a half-spectrum."""
    lead, (*rows, width) = parts.shape[: -len(grid) - 1], grid
    columns = width // 2 + 1
    x = parts
    for i, side in enumerate(rows):
        cos, sin = waves(side, side, x)
        top, bottom = torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)
        matrix = torch.stack([top, bottom], 1).flatten(0, 1) / side  # to (side, 2)
        rest = prod(rows[i + 1 :]) * columns
        x = matrix @ x.reshape(*lead, *rows[:i], 2 * side, rest)
    cos, sin = waves(width, columns, x)
    weights = column_weights((width,), x)[:, None]
    matrix = torch.cat([cos * weights, -sin * weights])
    return (x.reshape(*lead, *rows, 2 * columns) @ matrix).reshape(*lead, *grid)
