"""Share projections, windows of a map, and attention to several sets of keys."""

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import PointwiseLinear
from mmattn.models.layers.checks import check_heads
from mmattn.ops.common.adaptive_pool import adaptive_avg_pool


class TokenMixer(nn.Module):
    """Projections around `mix`, with the parameter names of `ViT`'s dense attention.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.

    Raises:
        ValueError: heads do not divide C.
    """

    def __init__(self, embed_dims: int, num_heads: int):
        super().__init__()
        check_heads(embed_dims, num_heads)
        self.num_heads = num_heads
        self.head_dims = embed_dims // num_heads
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims)
        self.proj = PointwiseLinear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, H, W, C) in and out."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(3, 0, 4, 1, 2, 5)  # (B, M, H, W, D)
        out = self.mix(q, k, v, x)
        return self.proj(out.permute(0, 2, 3, 1, 4).flatten(3))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """Return the heads' outputs (B, M, H, W, D).

        Args:
            q, k, v: shape (B, M, H, W, D). Scores of softmax attention are
                `q k^T / sqrt(D)`.
            x: tokens before the projection, (B, H, W, C).
        """
        raise NotImplementedError

    def split_scale(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Multiply by D^(-1/4), so that products of two have the scale of scores."""
        return tuple(tensor * self.head_dims**-0.25 for tensor in tensors)


class Windows:
    """Cut maps of one size into windows, and put windows together again.

    Args:
        grid: height and width of the maps.
        window: height and width of a window. A map's side that is shorter takes its
            place. Windows at the right and the bottom may stand over.
        halo: pixels that a window of keys is larger at each side.
    """

    def __init__(self, grid: Sequence[int], window: Sequence[int], halo: int = 0):
        self.grid = tuple(grid)
        self.window = tuple(map(min, window, grid))
        self.counts = tuple(
            -(-side // w) for side, w in zip(grid, self.window, strict=True)
        )
        self.halo = halo

    @property
    def sees_beyond(self) -> bool:
        """Return whether any key lies beyond the map."""
        sides = (w * count for w, count in zip(self.window, self.counts, strict=True))
        return self.halo > 0 or tuple(sides) != self.grid

    @property
    def is_whole(self) -> bool:
        """Return whether one window covers the map."""
        return self.counts == (1, 1)

    def split(self, x: Tensor, halo: int = 0) -> Tensor:
        """Cut (B, M, H, W, D) into G windows of K pixels, (B, M, G, K, D).

        Args:
            x: maps, which are zero beyond their sides.
            halo: further pixels at each side.
        """
        padding = []
        for side, w, count in zip(self.grid, self.window, self.counts, strict=True):
            padding = [halo, count * w - side + halo, *padding]
        x = F.pad(x, [0, 0, *padding])
        for dim, w in zip((2, 3), self.window, strict=True):
            x = x.unfold(dim, w + 2 * halo, w)
        # (B, M, rows, columns, D, h, w)
        return x.permute(0, 1, 2, 3, 5, 6, 4).flatten(4, 5).flatten(2, 3)

    def keys(self, x: Tensor) -> Tensor:
        """Cut (B, M, H, W, D) into windows with their halo."""
        return self.split(x, self.halo)

    def merge(self, windows: Tensor) -> Tensor:
        """Put windows (B, M, G, K, D) without halo together to (B, M, H, W, D)."""
        (rows, columns), (h, w), (H, W) = self.counts, self.window, self.grid
        x = windows.unflatten(3, (h, w)).unflatten(2, (rows, columns))
        x = x.transpose(3, 4).flatten(4, 5).flatten(2, 3)
        return x[:, :, :H, :W]

    def beyond(self, like: Tensor) -> Tensor:
        """Return which keys lie beyond the map, (G, 1, K), to broadcast over queries.

        Args:
            like: tensor on the device of the result.
        """
        inside = torch.ones(1, 1, *self.grid, 1, device=like.device)
        return self.keys(inside)[0, 0].mT == 0

    def scores(self, q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the scores of windows of queries and of keys, (B, M, G, Q, K).

        Args:
            q: queries (B, M, G, Q, D), scaled.
            k: keys (B, M, G, K, D).
            bias: shape (M, Q, K), or None.
        """
        scores = q @ k.mT
        if bias is not None:
            scores = scores + bias[:, None]
        if self.sees_beyond:
            scores = scores.masked_fill(self.beyond(q), -torch.inf)
        return scores


def attend(sets: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attend to several sets of keys with one softmax over all of them.

    Args:
        sets: scores and values of each set: (B, M, G, Q, K) and (B, M, G, K, D), or
            (B, M, K, D) for values that all windows G share. K differs between sets.

    Returns:
        Shape (B, M, G, Q, D).
    """
    scores, values = zip(*sets, strict=True)
    joint = torch.cat(scores, -1) if len(sets) > 1 else scores[0]
    weights = joint.softmax(-1).split([each.shape[-1] for each in scores], -1)
    return functools.reduce(torch.add, map(_weighted_sum, weights, values))


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    if values.dim() == weights.dim():
        return weights @ values
    # One product for all windows, which copies no values.
    return (weights.flatten(2, 3) @ values).unflatten(2, weights.shape[2:4])


def attend_near_and_far(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    elsewhere: Callable[[Windows, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    """Attend to the tokens of the own window, and to what stands for all others.

    Args:
        q, k: queries and keys (B, M, H, W, D), scaled.
        v: values (B, M, H, W, D).
        window: side of a window.
        elsewhere: returns scores and values, as in `attend`, from the windows and from
            q, k and v cut by them. It is not called if one window covers the map.

    Returns:
        Shape (B, M, H, W, D).
    """
    windows = Windows(q.shape[2:4], (window, window))
    q, k, v = map(windows.split, (q, k, v))
    sets = [(windows.scores(q, k), v)]
    if not windows.is_whole:
        sets.append(elsewhere(windows, q, k, v))
    return windows.merge(attend(sets))


def shared_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return the scores of windows of queries and of keys that all windows share.

    Args:
        q: queries (B, M, G, Q, D), scaled.
        k: keys (B, M, K, D).

    Returns:
        Shape (B, M, G, Q, K).
    """
    return (q.flatten(2, 3) @ k.mT).unflatten(2, q.shape[2:4])


def pool_heads(x: Tensor, landmarks: int) -> Tensor:
    """Average maps (B, M, H, W, D) over a grid of landmarks, (B, M, L, D).

    A side of the map that has fewer pixels than `landmarks` keeps them.
    """
    size = [min(landmarks, side) for side in x.shape[2:4]]
    return (
        adaptive_avg_pool(x.flatten(0, 1), size).flatten(1, 2).unflatten(0, x.shape[:2])
    )


def check_positive(**settings: int):
    """Raise a ValueError unless all settings are at least 1."""
    for name, value in settings.items():
        if value < 1:
            raise UserError(f'{name} must be at least 1, got {value}')
