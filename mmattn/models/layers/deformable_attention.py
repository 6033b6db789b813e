"""Attention to sampled points that all queries share, on a channels-last grid."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError, check_choice
from mmattn.ops import deformable_attention, ms_deform_attn
from mmattn.ops.common.biased_attention import biased_attention
from mmattn.ops.common.exporting import is_exporting, is_known
from mmattn.ops.common.precision import cast_under_autocast
from mmattn.ops.common.sampling import sample_maps
from mmattn.ops.deformable_attention import query_positions

from .checks import check_heads
from .deformable_positions import (
    POSITIONS,
    fixed_bias,
    log_displacement_bias,
    log_displacement_net,
)
from .depthwise_conv import DepthwiseConv, depthwise_conv2d
from .pointwise import PointwiseLinear
from .resize import fit_on_load

OFFSET_RANGES = {1: 2.0, 2: -1.0}  # of the versions, in steps of the keys' grid


class DeformableAttention(nn.Module):
    """Offsets, samples and projections around `ops.deformable_attention`.

    A small network predicts offsets from a uniform grid of reference points for each
    group of heads. Keys and values are projections of the map there. It has the
    parameters of the official code (https://github.com/LeapLabTHU/DAT, Apache-2.0),
    whose 1x1 convolutions are linear layers here.

    Version 1 is "Vision Transformer with Deformable Attention",
    https://arxiv.org/abs/2201.00520. Its points are the centers of the cells of the
    keys' grid, whose outer edges are the map's, and offsets are within two steps of
    that grid. Samples outside of the map are zero. Version 2 is "DAT++",
    https://arxiv.org/abs/2309.01430. Its points lie half a step right and below,
    offsets have any size, and their sums are clamped to the map. In both, the only
    point of a side of one cell lies in the middle; version 2's formula would divide by
    zero.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        num_groups: groups G with offsets of their own; divides M.
        table_grid: the map (H, W) that the table of relative positions is made for,
            which has 2 H - 1 by 2 W - 1 entries for each head. Other maps read the same
            table at normalized displacements. A loaded table of another size is resized
            as in the official code, see `resize_grid`.
        kernel_size, stride: settings of the offset network's depthwise convolution. One
            key stands for each `stride` x `stride` pixels.
        version: 1 (DAT) or 2 (DAT++); see above.
        offsets: whether points move. Without offsets, and their network, they stay
            where the uniform grid has them.
        offset_range: how many steps of the keys' grid an offset may reach; -1 for
            offsets of any size, whose sums are clamped to the map. None takes the
            version's: 2 in version 1, -1 in version 2.
        position: 'table' for the table of relative positions; 'fixed' for a number for
            each head, query and key, wherever the key lies; 'log-cpb' for a network of
            the displacement; 'dwc' for a depthwise convolution of the queries that is
            added to the result; or 'none'. All but the first are ablations.
        backend: backend of the operator; None takes the fastest.

    Raises:
        ValueError: heads or groups that do not divide, or a wrong setting.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_groups: int,
        table_grid: Sequence[int],
        *,
        kernel_size: int,
        stride: int = 1,
        version: int = 2,
        offsets: bool = True,
        offset_range: float | None = None,
        position: str = 'table',
        backend: str | None = None,
    ):
        super().__init__()
        check_heads(embed_dims, num_heads)
        if num_heads % num_groups:
            raise UserError(f'{num_heads} heads do not split into {num_groups} groups')
        if len(table_grid) != 2 or min(table_grid) < 1:
            raise UserError(f'table_grid must be two positive sides, got {table_grid}')
        if not 1 <= stride <= kernel_size:
            raise UserError(
                'stride must be from 1 to kernel_size, '
                f'got {stride=} and {kernel_size=}'
            )
        if version not in (1, 2):
            raise UserError(f'version must be 1 or 2, got {version!r}')
        check_choice('position', position, POSITIONS)
        self.num_heads = num_heads
        self.num_groups = num_groups
        self.version = version
        self.position = position
        self.offset_range = (
            OFFSET_RANGES[version] if offset_range is None else offset_range
        )
        self.kernel_size, self.stride = kernel_size, stride
        self.padding = 0 if kernel_size == stride else kernel_size // 2
        self.backend = backend
        group_dims = embed_dims // num_groups
        self.proj_q = PointwiseLinear(embed_dims, embed_dims)
        self.conv_offset = None
        if offsets:
            self.conv_offset = nn.Sequential(
                nn.Conv2d(
                    group_dims,
                    group_dims,
                    kernel_size,
                    stride,
                    padding=self.padding,
                    groups=group_dims,
                ),
                nn.LayerNorm(group_dims),
                nn.GELU(),
                PointwiseLinear(group_dims, 2, bias=False),
            )
        self.proj_k = PointwiseLinear(embed_dims, embed_dims)
        self.proj_v = PointwiseLinear(embed_dims, embed_dims)
        self.proj_out = PointwiseLinear(embed_dims, embed_dims)
        self.table_grids = tuple(table_grid), self.key_grid(table_grid)
        self.rpe_table = self._positions()
        if isinstance(self.rpe_table, nn.Parameter):
            nn.init.trunc_normal_(self.rpe_table, std=0.01)
        if position == 'table':
            fit_on_load(self, 'rpe_table')

    def _positions(self) -> nn.Parameter | nn.Module | None:
        """Return what `position` has in the place of the table."""
        M, grids = self.num_heads, self.table_grids
        match self.position:
            case 'none':
                return None
            case 'dwc':
                return DepthwiseConv(self.proj_q.in_features, 3)
            case 'log-cpb':
                return log_displacement_net(M // self.num_groups)
            case 'fixed':
                return nn.Parameter(torch.empty(M, *(H * W for H, W in grids)))
        return nn.Parameter(torch.empty(M, *(2 * side - 1 for side in grids[0])))

    def no_weight_decay(self) -> set[str]:
        names = (name for name, _ in self.named_parameters())
        return {name for name in names if name.startswith('rpe_table')}

    def key_grid(self, grid: Sequence[int]) -> tuple[int, int]:
        """Return the height and width of the keys' grid on a map of `grid`."""
        beyond = 2 * self.padding - self.kernel_size
        return tuple(max(0, side + beyond) // self.stride + 1 for side in grid)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, H, W, C) in and out."""
        B, H, W, C = x.shape
        (x,) = cast_under_autocast(x)  # once for queries and samples
        q = self.proj_q(x)
        positions = self.positions(q)
        samples = sample_map(x, positions)
        q, k, v = (
            tokens.flatten(1, -2).unflatten(-1, (self.num_heads, C // self.num_heads))
            for tokens in (q, self.proj_k(samples), self.proj_v(samples))
        )
        out = self.attend(q, k, v, (H, W), positions)  # (B, N, M, D)
        return self.proj_out(out.reshape(B, H, W, C))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int], positions: Tensor
    ) -> Tensor:
        """Attend from q (B, N, M, D) on `grid` to k and v (B, K, M, D)."""
        if self.position == 'table':
            return deformable_attention(
                q,
                k,
                v,
                grid,
                positions,
                self.rpe_table,
                align_corners=self.version == 2,
                backend=self.backend,
            )
        bias = self.bias(grid, positions)
        bias = None if bias is None else bias.to(q.dtype)
        heads = (x.transpose(1, 2) for x in (q, k, v))
        out = biased_attention(*heads, bias).transpose(1, 2)
        if self.position == 'dwc':
            maps = self.rpe_table(q.flatten(2).unflatten(1, grid))  # (B, H, W, C)
            out = out + maps.reshape(out.shape)
        return out

    def bias(self, grid: tuple[int, int], positions: Tensor) -> Tensor | None:
        """Return the bias of the scores of `fixed` and `log-cpb`; None for others.

        Its shape is (M, N, K) for `fixed`, (B, M, N, K) for `log-cpb`.
        """
        if self.position == 'fixed':
            grids = grid, self.key_grid(grid)
            return fixed_bias(self.rpe_table, self.table_grids, grids)
        if self.position == 'log-cpb':
            queries = query_positions(
                grid, self.version == 2, dtype=positions.dtype, device=positions.device
            )
            return log_displacement_bias(self.rpe_table, queries, positions)
        return None

    def sampled_positions(self, x: Tensor) -> Tensor:
        """Return where the keys of a map (B, H, W, C) lie, shape (B, G, K, 2).

        Keys are in row-major order of their grid. Positions are (x, y), where -1 and 1
        are the centers of the outer pixels, in both versions.
        """
        return self.positions(self.proj_q(x))

    def positions(self, q: Tensor) -> Tensor:
        """Return `sampled_positions` of queries (B, H, W, C), in float32 at least."""
        if self.conv_offset is None:
            grid = self.key_grid(q.shape[1:3])
            offsets = q.new_zeros(q.shape[0], *grid, self.num_groups, 2)
        else:
            offsets = self.offsets(q)  # (B, Hk, Wk, G, 2)
        Hk, Wk = offsets.shape[1:3]
        dy, dx = offsets.unbind(-1)
        if self.offset_range >= 0:
            dtype = torch.promote_types(offsets.dtype, torch.float32)
            dy, dx = (
                d.to(dtype).tanh() * (self.offset_range / self._steps(side))
                for d, side in ((dy, Hk), (dx, Wk))
            )
        y = self.reference_points(Hk, dy)[:, None, None] + dy
        x = self.reference_points(Wk, dx)[:, None] + dx
        points = torch.stack([x, y], dim=-1)
        if self.offset_range < 0:
            points = points.clamp(-1, 1)
        return points.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def reference_points(self, side: int, like: Tensor) -> Tensor:
        """Return the reference points of one side of the keys' grid, beside `like`.

        In float32 at least, which sums with offsets of fewer bits have, too.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        options = dict(dtype=dtype, device=like.device)
        if self.version == 1 or is_known(side == 1):
            return _every_second(side, 1 - side, options) / side
        return _every_second(side, 2 - side, options) / (side - 1)

    def _steps(self, side: int) -> int:
        """Return the number by which the code divides offsets, by the keys' side."""
        return side if self.version == 1 else max(1, side - 1)

    def offsets(self, q: Tensor) -> Tensor:
        """Return the offset (y, x) of each group at each key, (B, Hk, Wk, G, 2).

        All groups share the network.
        """
        conv, *pointwise = self.conv_offset
        G = self.num_groups
        kernel, padding = conv.kernel_size[0], conv.padding[0]
        if padding == 0:  # a map smaller than the kernel still has one key
            H, W = q.shape[1:3]
            q = F.pad(q, (0, 0, 0, max(0, kernel - W), 0, max(0, kernel - H)))
        q = depthwise_conv2d(
            q,
            conv.weight.repeat(G, 1, 1, 1),
            conv.bias.repeat(G),
            stride=conv.stride[0],
            padding=padding,
        )
        q = q.unflatten(-1, (G, -1))  # (B, Hk, Wk, G, C / G)
        for layer in pointwise:
            q = layer(q)
        return q


def _every_second(side: int, first: int, options: dict) -> Tensor:
    """Return the `side` numbers from `first` on in steps of 2."""
    if is_exporting() or torch.compiler.is_compiling():  # `side` may be a symbol
        return 2 * torch.arange(side, **options) + first
    return torch.arange(first, first + 2 * side, 2, **options)


def sample_map(x: Tensor, positions: Tensor) -> Tensor:
    """Sample each group's channels bilinearly, with zeros outside of the map.

    Args:
        x: shape (B, H, W, C).
        positions: shape (B, G, K, 2), (x, y), where -1 and 1 are the centers of the
            outer pixels. Group g has the channels [g * C / G, (g + 1) * C / G).

    Returns:
        Shape (B, K, C), in the dtype of x, interpolated in the dtype of `positions`.
    """
    B, H, W, C = x.shape
    G, K = positions.shape[1:3]
    if x.device.type != 'cpu' and not is_exporting():
        return sample_by_kernel(x, positions)
    maps = x.to(positions.dtype).reshape(B, H, W, G, C // G)
    maps = maps.permute(0, 3, 4, 1, 2).flatten(0, 1)  # (B * G, C / G, H, W)
    samples = sample_maps(
        maps, positions.reshape(B * G, 1, K, 2), align_corners=True
    )  # (B * G, C / G, 1, K)
    return samples.view(B, C, K).transpose(1, 2).to(x.dtype)


def sample_by_kernel(x: Tensor, positions: Tensor) -> Tensor:
    """Compute `sample_map` by a kernel that reads channels as they lie.

    On a GPU the gradient of `grid_sample` is summed in no fixed order, which
    `torch.use_deterministic_algorithms` refuses.
    """
    B, H, W, C = x.shape
    G, K = positions.shape[1:3]
    x_scale, y_scale = ((side - 1) / (2 * side) for side in (W, H))
    if H == W:
        places = positions * x_scale
    else:
        px, py = positions.unbind(-1)
        places = torch.stack([px * x_scale, py * y_scale], dim=-1)
    places = places + 0.5  # 0 and 1 are the outer edges of the map
    places = places.transpose(1, 2)[:, :, :, None, None]  # (B, K, G, 1, 1, 2)
    weights = places.new_ones(B, K, G, 1, 1)
    value = x.reshape(B, H * W, G, C // G)
    return ms_deform_attn(value, ((H, W),), places, weights)
