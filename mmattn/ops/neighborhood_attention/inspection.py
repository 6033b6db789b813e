"""FLOPs of neighborhood attention, and rows of its maps."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..common.inspection import Attention, Flops
from .reference import windows


def forward_flops(q, k, v, rpb, *args, **kwargs) -> int:
    """Count a score and a product with v for each key of each query's window.

    Tiles multiply more keys than that, which does not count.
    """
    K = (rpb[1] + 1) // 2
    return 2 * 2 * prod(q) * K**2


FLOPS = Flops(forward_flops)


def neighborhood_rows(q: Tensor, k: Tensor, rpb: Tensor, rows: Sequence[int]) -> Tensor:
    """Return kernels of neighborhood attention, which are zero outside the windows.

    Args:
        q, k: shape (H, W, M, D), as given to the operator.
        rpb: shape (M, 2 K - 1, 2 K - 1).
        rows: the queries, in row-major order of the map.

    Returns:
        Shape (len(rows), M, H * W).
    """
    H, W, M, D = q.shape
    K = (rpb.shape[1] + 1) // 2
    dtype = torch.promote_types(q.dtype, torch.float32)
    places = torch.as_tensor(list(rows), device=q.device)
    y_q, x_q = places // W, places % W
    y, x = (windows(s, K, q.device)[at] for s, at in ((H, y_q), (W, x_q)))
    seen = y[:, :, None], x[:, None]  # broadcast to (len(rows), K, K)
    scores = torch.einsum('rmd,rijmd->mrij', q[y_q, x_q].to(dtype), k[seen].to(dtype))
    dy, dx = y - y_q[:, None] + K - 1, x - x_q[:, None] + K - 1
    scores = scores * D**-0.5 + rpb[:, dy[:, :, None], dx[:, None]].to(dtype)
    tokens = (y[:, :, None] * W + x[:, None]).flatten(1)  # (len(rows), K * K)
    kernels = scores.new_zeros(M, len(places), H * W)
    kernels.scatter_(2, tokens.expand(M, -1, -1), scores.flatten(2).softmax(-1))
    return kernels.transpose(0, 1)


def attention(q, k, v, rpb) -> Attention:
    """Return the attention of a call."""
    return Attention(
        q.flatten(1, 2).shape[:3],
        lambda rows: neighborhood_rows(q[0], k[0], rpb, rows),
    )
