"""Multi-scale deformable attention on CPUs by weighted sums of rows of a table.

A query and head sums the four pixels around each of its L * P samples, which is a bag
of 4 L P rows of the table of all pixels and heads. Some queries take turns.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import pieces
from ..checks import device_reason
from ..pieces import Piece
from .reference import levels_of

ALL = slice(None)


def unsupported(value: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(value, 'cpu', 'meta')


def forward(value, points, weights, reference, *, shapes):
    """Return the output (B, Q, M, D)."""
    B, _, M, D = value.shape
    out = torch.empty(B, points.shape[1], M, D, dtype=value.dtype)
    tensors = value, points, weights, reference
    pieces.forward(_pieces(points, shapes), tensors, out)
    return out


def backward(grad, value, points, weights, reference, *, shapes):
    """Return the gradients of value, points, weights and reference, or None for it."""
    tensors = value, points, weights, reference
    return pieces.backward(_pieces(points, shapes), tensors, grad)


def _pieces(points: Tensor, shapes: Sequence[int]) -> Iterator[Piece]:
    B, Q, M, L, P, _ = points.shape
    attend = partial(_attend, shapes=shapes)
    for image in range(B):
        for (queries,) in pieces.split(Q, elements=M * L * P * 4):
            part = image, queries
            yield Piece(attend, part, (image, part, part, part))


def _attend(value, points, weights, reference, *, shapes):
    """Return the output (Q, M, D) of some queries of an image."""
    _, M, D = value.shape
    rows, shares = _four_pixels(points, reference, shapes)
    if reference is not None:
        weights = weights.flatten(2).softmax(-1).view_as(weights)
    rows = rows * M + torch.arange(M)[:, None, None, None]
    shares = shares * weights[..., None]
    bags = rows.flatten(0, 1).flatten(1), shares.flatten(0, 1).flatten(1)
    out = F.embedding_bag(
        bags[0], value.reshape(-1, D), per_sample_weights=bags[1], mode='sum'
    )
    return out.view(-1, M, D)


def _four_pixels(
    points: Tensor, reference: Tensor | None, shapes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return indices and shares of the pixels around each sample, (Q, M, L, P, 4).

    Pixels outside the maps have no share, and the index of the nearest one inside.
    """
    sizes = points.new_tensor([[W, H] for H, W in levels_of(shapes)])[:, None]
    places = _places(points, reference, sizes)
    is_finite = places.isfinite().all(-1, keepdim=True)
    places = torch.where(is_finite, places, -2.0).clamp_min(-2)
    before = torch.minimum(places, sizes).floor()
    share = torch.minimum(places, sizes) - before
    pixels = torch.stack([before, before + 1], -2)  # (Q, M, L, P, 2, x and y)
    shares = torch.stack([1 - share, share], -2)
    inside = (pixels >= 0) & (pixels < sizes[:, None])
    shares = torch.where(inside, shares, 0)
    pixels = torch.minimum(pixels.clamp_min(0), sizes[:, None] - 1).long()
    sizes = sizes.long()
    counts = sizes.prod(-1)
    first = counts.cumsum(0) - counts  # (L, 1)
    x, y = pixels.unbind(-1)
    rows = y[..., :, None] * sizes[..., 0, None, None] + x[..., None, :]
    rows = rows + first[..., None, None]
    share_x, share_y = shares.unbind(-1)
    return rows.flatten(-2), (share_y[..., :, None] * share_x[..., None, :]).flatten(-2)


def _places(points: Tensor, reference: Tensor | None, sizes: Tensor) -> Tensor:
    """Return where samples lie on their maps, in pixels from the center of the first."""
    if reference is None:
        return points * sizes - 0.5
    reference = reference[:, None, :, None]  # (Q, 1, L or 1, 1, 2 or 4)
    centers = reference[..., :2] * sizes - 0.5
    if reference.shape[-1] == 2:
        return centers + points
    return centers + points * reference[..., 2:] * sizes / (2 * points.shape[3])
