"""Attention inside the windows of a channels-last grid."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops.common.biased_attention import biased_attention
from mmattn.ops.common.exporting import copied, is_exporting, is_known

from .checks import check_heads
from .offset_tables import spread_table
from .pointwise import PointwiseLinear
from .resize import fit_on_load


class WindowAttention(nn.Module):
    """Self-attention in windows, aligned or shifted, of a map of any size.

    It is the attention of Swin Transformer (https://arxiv.org/abs/2103.14030), with the
    parameter names of DAT (https://github.com/LeapLabTHU/DAT).

    If a side is not a multiple of `window_size`, its last windows are padded, and the
    padding is masked. A side that fits into one window is not shifted.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        window_size: pixels w of a window's side. A loaded table of another size is
            resized as in Swin's and DAT's code, see `resize_grid`.
        shift: rows and columns before the first border between windows; 0 for windows
            that start with the map.

    Raises:
        ValueError: `num_heads` does not divide the channels, or `shift` is not smaller
            than a window.
    """

    def __init__(
        self, embed_dims: int, num_heads: int, window_size: int = 7, shift: int = 0
    ):
        super().__init__()
        check_heads(embed_dims, num_heads)
        if not 0 <= shift < window_size:
            raise UserError(
                f'shift must be in [0, window_size), got {shift=} and {window_size=}'
            )
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift = shift
        self.table_shape = (2 * window_size - 1,) * 2
        self.proj_qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        self.proj_out = PointwiseLinear(embed_dims, embed_dims)
        self.relative_position_bias_table = nn.Parameter(
            torch.empty((2 * window_size - 1) ** 2, num_heads)
        )
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.01)
        fit_on_load(self, 'relative_position_bias_table', self.table_shape, dim=0)

    def no_weight_decay(self) -> set[str]:
        return {'relative_position_bias_table'}

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, H, W, C) in and out."""
        B, *sides, C = x.shape
        if is_exporting() and not all(isinstance(side, int) for side in sides):
            return self.forward_any_size(x)
        window = [min(self.window_size, side) for side in sides]
        shift = [self.shift if side > self.window_size else 0 for side in sides]
        counts = [(side + w - 1) // w for side, w in zip(sides, window, strict=True)]
        padding = [
            n * w - side for n, w, side in zip(counts, window, sides, strict=True)
        ]
        is_padded = not all(is_known(p == 0) for p in padding)
        bias = self.bias(window)[None]  # (1, M, N, N)
        if any(shift) or is_padded:
            visible = same_part(sides, counts, window, shift, x.device)
            bias = torch.where(visible[:, None], bias, -torch.inf).repeat(B, 1, 1, 1)
        if is_padded:
            x = F.pad(x, (0, 0, 0, padding[1], 0, padding[0]))
        if any(shift):
            x = x.roll([-s for s in shift], dims=(1, 2))
        x = self.attend(to_windows(x, counts, window), bias)
        x = from_windows(x, counts, window)
        if any(shift):
            x = x.roll(shift, dims=(1, 2))
        return x[:, : sides[0], : sides[1]]

    def forward_any_size(self, x: Tensor) -> Tensor:
        """Return `forward` without a branch on the size, which may be symbolic.

        Pixels of all images are in one axis, since PyTorch asks whether axes have one
        element.
        """
        B, H, W, C = x.shape
        w, N = self.window_size, self.window_size**2
        n, m = ((side + w - 1) // w for side in (H, W))
        # A side that fits into one window is not shifted.
        down, right = (
            self.shift * (torch.arange(count * w, device=x.device)[-1:] >= w)
            for count in (n, m)
        )
        i = torch.arange(B * n * m * N, device=x.device)  # pixels of windows
        row = modulo(modulo(i // (m * N), n) * w + i // w % w + down, n * w)
        column = modulo(modulo(i // N, m) * w + i % w + right, m * w)
        part = 3 * ((row < down) + 2 * (row >= H))
        part = (part + (column < right) + 2 * (column >= W)).view(-1, N)
        visible = part[:, :, None] == part[:, None]  # (B * windows, N, N)
        bias = torch.where(visible[:, None], self.bias((w, w)), -torch.inf)
        pixels = (i // (n * m * N) * H + row.clamp(max=H - 1)) * W
        pixels = pixels + column.clamp(max=W - 1)
        x = x.reshape(-1, C).index_select(0, pixels).view(-1, N, C)
        x = self.attend(x, bias).reshape(-1, C)
        i = torch.arange(B * H * W, device=x.device)  # pixels of maps
        row = modulo(modulo(i // W, H) + n * w - down, n * w)
        column = modulo(modulo(i, W) + m * w - right, m * w)
        window = (i // (H * W) * n + row // w) * m + column // w
        pixels = window * N + row % w * w + column % w
        return x.index_select(0, pixels).view(B, H, W, C)

    def attend(self, x: Tensor, bias: Tensor) -> Tensor:
        """Attend inside all windows of N pixels; (B * windows, N, C) in and out."""
        B, N, C = x.shape
        qkv = self.proj_qkv(x).view(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B * windows, M, N, D)
        out = biased_attention(q, k, v, bias.to(q.dtype))
        return self.proj_out(copied(out.transpose(1, 2)).reshape(B, N, C))

    def bias(self, window: Sequence[int]) -> Tensor:
        """Return the bias (M, N, N) of a window's queries and keys."""
        table = self.relative_position_bias_table.t().unflatten(1, self.table_shape)
        return spread_table(table, window)

    def extra_repr(self) -> str:
        return f'window_size={self.window_size}, shift={self.shift}'


def modulo(i: Tensor, size: int) -> Tensor:
    """Return `i % size`, which onnxscript supports only for a constant size."""
    return i - i // size * size


def to_windows(x: Tensor, counts: Sequence[int], window: Sequence[int]) -> Tensor:
    """Split (B, H, W, C) into `counts` rows and columns of windows.

    The result has shape (B * windows, N, C).
    """
    (rows, columns), (h, w) = counts, window
    x = x.reshape(-1, rows, h, columns, w, x.shape[-1]).transpose(2, 3)
    return x.reshape(-1, h * w, x.shape[-1])


def from_windows(x: Tensor, counts: Sequence[int], window: Sequence[int]) -> Tensor:
    """Invert `to_windows`."""
    (rows, columns), (h, w) = counts, window
    x = x.view(-1, rows, columns, h, w, x.shape[-1]).transpose(2, 3)
    return x.reshape(-1, rows * h, columns * w, x.shape[-1])


def same_part(
    sides: Sequence[int],
    counts: Sequence[int],
    window: Sequence[int],
    shift: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Return which pixels of each window see each other, (windows, N, N).

    A cyclic shift brings opposite borders of a map, and padding, into the same window.
    Pixels of different parts do not see each other.
    """
    parts = []
    for side, n, w, s in zip(sides, counts, window, shift, strict=True):
        i = torch.arange(n * w, device=device).roll(-s)
        parts.append((i < s) + 2 * (i >= side))
    part = 3 * parts[0][:, None] + parts[1]  # (H, W)
    part = to_windows(part[None, :, :, None], counts, window)  # (windows, N, 1)
    return part == part.mT
