"""NATTEN's neighborhood attention on our operator, without the package natten.

    from mmattn.natten import na2d  # in place of `from natten import na2d`

NATTEN is the official code of neighborhood attention, https://natten.org. On a CPU it
has PyTorch's flex_attention, which computes no gradients there. None of its code is
used here. Dilation is from "Dilated Neighborhood Attention Transformer",
https://arxiv.org/abs/2209.15001.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops import neighborhood_attention

__all__ = ['na2d']

Pair = int | tuple[int, int]


def na2d(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: Pair,
    stride: Pair = 1,
    dilation: Pair = 1,
    is_causal: bool | tuple[bool, bool] = False,
    scale: float | None = None,
    *,
    rpb: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Attend from each query to the K x K nearest pixels of its residue class.

    With a dilation d, pixels of a class are d apart in both axes. A window that would
    cross the border is shifted into the map. It takes the arguments of `natten.na2d`
    0.20 and newer, and the `rpb` of 0.17 and older. B batch, H and W the map, both
    at least K times the dilation, M heads, D head width.

    Args:
        query, key, value: shape (B, H, W, M, D), float32, float16, bfloat16 or float64,
            of one dtype.
        kernel_size: K, odd, at least 3, the same for both axes.
        stride: 1, since others are not supported.
        dilation: distance of neighbors, one number or one for each axis.
        is_causal: False, since causal attention is not supported.
        scale: factor of the scores, D ** -0.5 by default.
        rpb: relative position bias, shape (M, 2 K - 1, 2 K - 1), of neighbors counted
            in steps of the dilation; none by default.
        backend: backend of `mmattn.ops.neighborhood_attention`, not one of NATTEN's.

    Returns:
        Shape (B, H, W, M, D), dtype as query.

    Raises:
        ValueError: an argument is not supported, or shapes disagree.

    Example:
        >>> q, k, v = torch.randn(3, 2, 14, 15, 4, 32).unbind()
        >>> na2d(q, k, v, kernel_size=7, dilation=2).shape
        torch.Size([2, 14, 15, 4, 32])
    """
    K, dilation = check_window(kernel_size, stride, dilation, is_causal)
    if query.dim() != 5:
        raise UserError(
            f'`query` must have shape (B, H, W, M, D), got {tuple(query.shape)}'
        )
    H, W, M, D = query.shape[1:]
    if H < K * dilation[0] or W < K * dilation[1]:
        raise UserError(
            f'a {H}x{W} map is smaller than a {K}x{K} window with dilation {dilation}'
        )
    if rpb is None:
        rpb = query.new_zeros(M, 2 * K - 1, 2 * K - 1)
    elif rpb.shape != (M, 2 * K - 1, 2 * K - 1):
        raise UserError(
            f'`rpb` must have shape {(M, 2 * K - 1, 2 * K - 1)}, got {tuple(rpb.shape)}'
        )
    if scale is not None:
        query = query * (scale * D**0.5)

    def attend(*maps: Tensor) -> Tensor:
        return neighborhood_attention(*maps, rpb, backend=backend)

    if dilation == (1, 1):
        return attend(query, key, value)
    return _in_classes(attend, (query, key, value), dilation)


def check_window(kernel_size, stride, dilation, is_causal) -> tuple:
    """Return K and the dilations, or raise for what is not supported."""
    sizes, strides, dilations, causal = (
        tuple(x) if isinstance(x, tuple | list) else (x, x)
        for x in (kernel_size, stride, dilation, is_causal)
    )
    if any(causal):
        raise UserError(f'causal attention is not supported, got {is_causal=}')
    if strides != (1, 1):
        raise UserError(f'`stride` must be 1, got {stride}')
    K = sizes[0]
    if sizes != (K, K) or K < 3 or K % 2 == 0:
        raise UserError(
            '`kernel_size` must be odd, at least 3 and the same for both axes, got '
            f'{kernel_size}'
        )
    if len(dilations) != 2 or min(dilations) < 1:
        raise UserError(
            f'`dilation` must be one or two positive numbers, got {dilation}'
        )
    return K, dilations


def _in_classes(
    attend: Callable, maps: tuple[Tensor, ...], dilation: tuple[int, int]
) -> Tensor:
    """Attend in each residue class of the pixels as in a map of its own.

    The classes of a map whose side the dilation does not divide have two sizes. Those
    of one size are a batch.
    """
    H, W = maps[0].shape[1:3]
    d_y, d_x = dilation
    pad = 0, 0, 0, 0, 0, -W % d_x, 0, -H % d_y
    maps = [F.pad(x, pad).unflatten(2, (-1, d_x)).unflatten(1, (-1, d_y)) for x in maps]
    rows = []  # (B, h, d_y, w, d_x, M, D) each, of which these have some of d_y
    for height, first_y, end_y in _groups(H, d_y):
        row = []
        for width, first_x, end_x in _groups(W, d_x):
            group = [x[:, :height, first_y:end_y, :width, first_x:end_x] for x in maps]
            batch = group[0].shape[0], end_y - first_y, end_x - first_x
            group = [x.permute(0, 2, 4, 1, 3, 5, 6).flatten(0, 2) for x in group]
            out = attend(*group).unflatten(0, batch).permute(0, 3, 1, 4, 2, 5, 6)
            missing = maps[0].shape[3] - width, maps[0].shape[1] - height
            pad = (0,) * 6 + (0, missing[0], 0, 0, 0, missing[1])
            row.append(F.pad(out, pad))
        rows.append(torch.cat(row, 4))
    return torch.cat(rows, 2).flatten(3, 4).flatten(1, 2)[:, :H, :W]


def _groups(side: int, dilation: int) -> list[tuple[int, int, int]]:
    """Return the pixels of a class of an axis, and the first and the last such class.

    The last one is excluded.
    """
    pixels, longer = divmod(side, dilation)
    if longer == 0:
        return [(pixels, 0, dilation)]
    return [(pixels + 1, 0, longer), (pixels, longer, dilation)]


def attend_as_natten(module: nn.Module, x: Tensor) -> Tensor:
    """Compute `natten.NeighborhoodAttention2D`, of maps (B, H, W, C)."""
    qkv = module.qkv(x).unflatten(-1, (3, module.num_heads, -1))
    out = na2d(
        *qkv.unbind(3),
        module.kernel_size,
        module.stride,
        module.dilation,
        module.is_causal,
        module.scale,
    )
    return module.proj_drop(module.proj(out.flatten(3)))


def attend_as_dinat(
    module: nn.Module, hidden_states: Tensor, output_attentions: bool | None = False
) -> tuple[Tensor]:
    """Compute the `NeighborhoodAttention` of transformers' DiNAT.

    Args:
        hidden_states: shape (B, H, W, C).
        output_attentions: False, since weights are not computed one by one.
    """
    if output_attentions:
        raise UserError(
            'output_attentions=True is not supported; call mmattn.restore(model)'
        )
    q, k, v = (
        layer(hidden_states).unflatten(-1, (module.num_attention_heads, -1))
        for layer in (module.query, module.key, module.value)
    )
    out = na2d(q, k, v, module.kernel_size, dilation=module.dilation, rpb=module.rpb)
    return (out.flatten(3),)
