"""Inputs of neighborhood attention for tests, benchmarks and the environment report."""

import torch
from torch import Tensor


def example_inputs(
    *,
    grid: tuple[int, int] = (9, 8),
    B: int = 2,
    M: int = 3,
    D: int = 8,
    K: int = 5,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = 'cpu',
    seed: int = 0,
) -> list[Tensor]:
    """Return q, k, v and rpb of `neighborhood_attention`.

    q, k and v are views of one packed tensor, as a model's projection leaves them. The
    biases are in float32 (float64 in float64).
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    qkv = draw(B, *grid, 3, M, D).to(device, dtype).unbind(3)
    rpb = draw(M, 2 * K - 1, 2 * K - 1)
    return [*qkv, rpb.to(device, torch.promote_types(dtype, torch.float32))]
