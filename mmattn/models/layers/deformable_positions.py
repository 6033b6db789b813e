"""Ways to tell deformable attention where its keys lie, other than DAT's table.

The ablations of "Vision Transformer with Deformable Attention",
https://arxiv.org/abs/2201.00520, and of "DAT++", https://arxiv.org/abs/2309.01430, as
in their code (https://github.com/LeapLabTHU/DAT, Apache-2.0).
"""

from collections.abc import Sequence

from torch import Tensor, nn

from .resize import resize_flat_grid

POSITIONS = 'table', 'none', 'fixed', 'dwc', 'log-cpb'
HIDDEN_DIMS = 32  # of the network of `log_displacement_net`


def fixed_bias(
    table: Tensor,
    old_grids: tuple[Sequence[int], Sequence[int]],
    grids: tuple[Sequence[int], Sequence[int]],
) -> Tensor:
    """Return the bias of a table that knows no offsets.

    Args:
        table: shape (M, N, K), for each head, query and key.
        old_grids: (H, W) of the queries and of the keys that the table is made for.
        grids: grids of the result, to which the table is resized (bicubic).

    Returns:
        Shape (M, N', K').
    """
    for dim, old, new in zip((1, 2), old_grids, grids, strict=True):
        table = resize_flat_grid(table, old, new, dim=dim)
    return table


def log_displacement_net(num_heads: int) -> nn.Sequential:
    """Build the network from a displacement (y, x) to a bias for each of some heads.

    It is the continuous relative position bias of "Swin Transformer V2",
    https://arxiv.org/abs/2111.09883, for the heads of one group.
    """
    return nn.Sequential(
        nn.Linear(2, HIDDEN_DIMS),
        nn.ReLU(),
        nn.Linear(HIDDEN_DIMS, num_heads, bias=False),
    )


def log_displacement_bias(net: nn.Module, queries: Tensor, positions: Tensor) -> Tensor:
    """Return the bias that a network makes of logarithmic displacements.

    Args:
        net: see `log_displacement_net`.
        queries: shape (N, 2), (x, y) in [-1, 1].
        positions: shape (B, G, K, 2), (x, y) in [-1, 1].

    Returns:
        Shape (B, M, N, K).
    """
    displacements = 4 * (queries[:, None] - positions[:, :, None])  # (B, G, N, K, 2)
    logs = displacements.sign() * (displacements.abs() + 1).log2() / 3
    bias = net(logs.flip(-1).to(net[0].weight.dtype))  # (B, G, N, K, M / G)
    return bias.permute(0, 1, 4, 2, 3).flatten(1, 2)
