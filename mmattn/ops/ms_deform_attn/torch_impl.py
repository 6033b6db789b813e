"""Multi-scale deformable attention on CPUs by weighted sums of rows of a table.

A query and head sums the four pixels around each of its L * P samples, which is a bag
of 4 L P rows of the table of all pixels and heads. Some queries take turns.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common import pieces
from ..common.checks import device_reason
from ..common.pieces import Piece
from .reference import levels_of


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
    _, _, L, P, _ = points.shape
    if reference is not None:
        weights = weights.flatten(2).softmax(-1)
    weights = weights.reshape(-1, M * L * P)
    rows, shares = [], []
    for index, share in _four_pixels(points, reference, shapes):
        rows.append(index.view(-1, L * P))
        shares.append((share * weights).view(-1, L * P))
    out = _Bags.apply(value.reshape(-1, D), torch.cat(rows, 1), torch.cat(shares, 1))
    return out.view(-1, M, D)


class _Bags(torch.autograd.Function):
    """Sum rows of a table, times their shares, by bags.

    The gradient of the table is a sum of bags, too: one for each row's places. That is
    faster than PyTorch's gradient, which adds a row at a time.
    """

    @staticmethod
    def forward(ctx, table, rows, shares):
        ctx.save_for_backward(table, rows, shares)
        return _sum(table, rows, shares)

    @staticmethod
    def backward(ctx, grad):
        table, rows, shares = ctx.saved_tensors
        ordered, order = rows.flatten().sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(len(table)))
        grad_table = _sum(grad, order // rows.shape[1], shares.flatten()[order], starts)
        with torch.enable_grad():
            shares = shares.detach().requires_grad_()
            (grad_shares,) = torch.autograd.grad(
                _sum(table, rows, shares), shares, grad
            )
        return grad_table, None, grad_shares


def _sum(table, rows, shares, starts=None):
    return F.embedding_bag(rows, table, starts, per_sample_weights=shares, mode='sum')


def _four_pixels(
    points: Tensor, reference: Tensor | None, shapes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield index and share of each of the pixels around the samples, (Q, M * L * P).

    The index stands for a pixel and head. Pixels outside the maps have no share, and
    the index of the nearest one inside.
    """
    _, M, L, P, _ = points.shape
    sizes = torch.tensor([[W, H] for H, W in levels_of(shapes)])
    places = _places(points, reference, sizes[:, None].to(points.dtype))
    # Long rows, along which PyTorch's loops are fast.
    places = [each.flatten(1) for each in places.unbind(-1)]
    widths, heights = sizes[:, None].expand(M, L, P, 2).reshape(-1, 2).unbind(-1)
    is_finite = places[0].isfinite() & places[1].isfinite()
    x, y = (
        _pair(torch.where(is_finite, each, -2.0), length)
        for each, length in zip(places, (widths, heights), strict=True)
    )
    counts = sizes.prod(-1)
    first = (counts.cumsum(0) - counts)[:, None].expand(M, L, P).flatten()
    heads = torch.arange(M).repeat_interleave(L * P)
    for row, share_y in y:
        for column, share_x in x:
            index = first + row * widths + column
            yield index * M + heads, share_y * share_x


def _pair(places: Tensor, length: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the pixels before and after each place on an axis, and their shares."""
    places = torch.minimum(places.clamp_min(-2), length)
    before = places.floor()
    after = places - before
    pairs = []
    for pixel, share in ((before, 1 - after), (before + 1, after)):
        share = torch.where((pixel >= 0) & (pixel < length), share, 0)
        pairs.append((torch.minimum(pixel.clamp_min(0), length - 1).long(), share))
    return pairs


def _places(points: Tensor, reference: Tensor | None, sizes: Tensor) -> Tensor:
    """Return where samples lie on their maps, in pixels from the center of the first."""
    if reference is None:
        return points * sizes - 0.5
    reference = reference[:, None, :, None]  # (Q, 1, L or 1, 1, 2 or 4)
    centers = reference[..., :2] * sizes - 0.5
    if reference.shape[-1] == 2:
        return centers + points
    return centers + points * reference[..., 2:] * sizes / (2 * points.shape[3])
