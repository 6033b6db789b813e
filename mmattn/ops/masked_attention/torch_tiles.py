"""The forward of a hard 3 x 3 mask by products of small tiles.

A tile is 4 x 4 queries and the 6 x 6 keys around them. A key outside a query's mask, or
outside the map, gets the score 0 in the tile. Its weight is then that of any token
outside the mask, which the sum of all values already contains.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from ..chunks import slices

TILE = 4
HALO = TILE + 2
CHUNK_ELEMENTS = 1 << 19  # of the keys of some tiles: 2 MiB in float32


def supports(*, grid, kernel_size, num_special, mask_fill) -> bool:
    """Return whether tiles cover a map and its hard mask."""
    return (
        (kernel_size, num_special, mask_fill) == (3, 0, 'zero')
        and grid[0] % TILE == grid[1] % TILE == 0
        and min(grid) >= HALO
    )


def forward(q, k, v, bias, *, grid, **stencil) -> tuple[Tensor, Tensor]:
    """Compute `torch_impl.forward` by tiles."""
    B, N, M, D = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(B, M, N, dtype=dtype)
    maps = [x.unflatten(1, grid) for x in (q, k, v, out, lse.mT.unsqueeze(-1))]
    outside = _outside(*grid)  # (n, m, 1, T, S)
    extra = None if bias is None else _spread(bias.to(dtype))
    n, m = outside.shape[:2]
    row = m * M * HALO**2 * D
    for images in slices(B, n * row, CHUNK_ELEMENTS):
        q_i, k_i, v_i, out_i, lse_i = (x[images] for x in maps)
        k_i, v_i = (F.pad(x.to(dtype), (0, 0, 0, 0, 1, 1, 1, 1)) for x in (k_i, v_i))
        total = v_i.sum((1, 2))[:, None, None, :, None]  # (b, 1, 1, M, 1, D)
        for rows in slices(n, len(q_i) * row, CHUNK_ELEMENTS):
            q_t = _tiles(q_i, rows).to(dtype, copy=True).mul_(D**-0.5)
            k_t, v_t = (_halos(x, rows) for x in (k_i, v_i))
            s = q_t.flatten(4, 5).flatten(0, 3).bmm(k_t.mT)
            s = s.view(len(q_i), rows.stop - rows.start, m, M, TILE**2, HALO**2)
            if extra is not None:
                s += extra
            s.masked_fill_(outside[rows], 0)
            highest = s.amax(-1, keepdim=True)  # 0 at least: no key is in all masks
            low = highest.neg().exp_()  # of a token outside the mask
            z = s.sub_(highest).exp_().sum(-1, keepdim=True)
            z.add_(low, alpha=N - HALO**2)
            y = s.sub_(low).flatten(0, 3).bmm(v_t).view(*s.shape[:-1], D)
            y.addcmul_(total, low).div_(z)
            row_lse = z.log_().add_(highest)
            for tiles, to in ((y, out_i), (row_lse, lse_i)):
                _tiles(to, rows).copy_(tiles.unflatten(4, (TILE, TILE)))
    return out, lse


def _tiles(x: Tensor, rows: slice) -> Tensor:
    """View some rows of tiles of (b, H, W, M, D) as (b, n, m, M, TILE, TILE, D)."""
    x = x[:, rows.start * TILE : rows.stop * TILE]
    x = x.unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE))
    return x.permute(0, 1, 3, 5, 2, 4, 6)


def _halos(x: Tensor, rows: slice) -> Tensor:
    """Copy the keys of tiles from padded maps, (b * n * m * M, HALO^2, D)."""
    x = x[:, rows.start * TILE : rows.stop * TILE + 2]
    x = x.unfold(1, HALO, TILE).unfold(2, HALO, TILE)  # (b, n, m, M, D, HALO, HALO)
    x = x.permute(0, 1, 2, 3, 5, 6, 4).contiguous()
    return x.flatten(4, 5).flatten(0, 3)


@functools.lru_cache(maxsize=32)
def _outside(H: int, W: int) -> Tensor:
    """Return which keys of a tile are outside a query's mask or outside the map.

    Shape (H / TILE, W / TILE, 1, TILE^2, HALO^2).
    """
    with torch.inference_mode(False):  # the next call may be outside of it
        y, x = (_outside_axis(side) for side in (H, W))  # (n, TILE, HALO)
        either = y[:, None, :, None, :, None] | x[None, :, None, :, None, :]
        return either.flatten(4, 5).flatten(2, 3).unsqueeze(2)


def _outside_axis(side: int) -> Tensor:
    starts = torch.arange(0, side, TILE)[:, None]
    queries = (starts + torch.arange(TILE))[..., None]
    keys = (starts - 1 + torch.arange(HALO))[:, None]
    return ((queries - keys).abs() > 1) | (keys < 0) | (keys >= side)


def _spread(bias: Tensor) -> Tensor:
    """Spread (M, 3, 3) to the queries and keys of a tile, (M, TILE^2, HALO^2).

    Entries outside the mask are arbitrary.
    """
    offset = torch.arange(HALO) - torch.arange(TILE)[:, None]  # (TILE, HALO)
    offset = offset.clamp(0, 2)
    spread = bias[:, offset[:, None, :, None], offset[None, :, None, :]]
    return spread.flatten(3, 4).flatten(1, 2)
