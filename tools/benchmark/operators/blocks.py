"""Build the cases of whole blocks, which several modules time."""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mmattn.models.backbones.vit import InteractiveSelfAttention, SelfAttention

from .case import Case
from .dense import dense_attention, map_bytes


class MatmulAttention(SelfAttention):
    """Compute dense self-attention through its N x N maps."""

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        q, k, v = self.qkv(x).view(B, H * W, 3, self.num_heads, -1).unbind(2)
        return self.proj(dense_attention(q, k, v).reshape(B, H, W, C))


def call(block: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
    """Call a block with other parameters, in the order of its own."""
    names = [name for name, _ in block.named_parameters()]
    return functional_call(block, dict(zip(names, parameters, strict=True)), (x,))


class OnMaps(nn.Module):
    """Run a block on maps of the size of an image, for `count`."""

    def __init__(self, block: nn.Module, channels: int):
        super().__init__()
        self.block, self.channels = block, channels

    def forward(self, image: Tensor) -> Tensor:
        B, _, H, W = image.shape
        return self.block(image.new_empty(B, H, W, self.channels))


def block_cases(
    blocks: Mapping[str, nn.Module],
    shape: tuple[int, int, int, int],
    device: str,
    dtype: torch.dtype,
    columns: Mapping[str, dict],
    same_as: Mapping[str, str],
    dft_flops: Callable[[nn.Module], dict] = lambda block: {},
) -> list[Case]:
    """Return a case of each block with one random map (B, H, W, C).

    Args:
        blocks: by method; the attention of each is `attn`.
        columns: further columns by method.
        same_as: by method, another with the same weights and results.
        dft_flops: returns `Case.dft_flops` of a block.
    """
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(shape, generator=generator) for _ in range(2))
    x, grad = x.to(device, dtype).requires_grad_(), grad.to(device, dtype)
    for method, other in same_as.items():
        blocks[method].load_state_dict(blocks[other].state_dict())
    made = []
    for method, block in blocks.items():
        block.to(device, dtype)
        mixed = isinstance(block.attn, InteractiveSelfAttention)
        needs = {}
        if mixed or isinstance(block.attn, MatmulAttention):
            B, H, W, _ = shape
            heads = block.attn.num_heads
            needs = map_bytes(B, H * W, heads, dtype, interaction=mixed)
        made.append(
            Case(
                method,
                functools.partial(call, block),
                [x, *block.parameters()],
                grad,
                needs=needs,
                same_as=same_as.get(method),
                dft_flops=dft_flops(block),
                columns=columns[method],
            )
        )
    return made
