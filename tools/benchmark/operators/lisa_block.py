"""The block of LiSANet-I beside blocks with other attention: the paper's Tables 4, 12.

192 channels and an MLP of ratio 4 in every block, 12 heads of 16 and 16 patterns in
LiSA. Self-attention has the 3 heads of DeiT-Ti, the paper's baseline: what the paper
prints for its memory at 28 x 28 is less than one map of 12 heads. 12 heads are timed
too. The tables are of "Lightweight Structure-Aware Attention for Visual Understanding",
https://arxiv.org/abs/2211.16289; they are of batches of 32 on a GPU.

`flops_m` are millions of multiply-accumulates of one image's forward pass. As the
paper's tables count them, `paper_flops_m`, layer norms count 5 for each value and what
runs in the kernels with the Fourier transforms nothing.
"""

import copy
import functools

import torch
from timm.layers import Mlp
from timm.models.mvitv2 import MultiScaleAttention
from torch import Tensor, nn
from torch.func import functional_call

from mmattn.analysis import count
from mmattn.models.backbones.lisanet import LiSABlock
from mmattn.models.backbones.vit import SelfAttention
from mmattn.models.layers import StructureAwareAttention

from .case import Case
from .dense import dense_attention, map_bytes
from .structure_aware_attention import WIDTH, dft_flops

SIDES = (7, 14, 28, 56, 84)
BASELINE = 'self_attention (matmul)'
SDPA = 'self_attention (SDPA)'
CHANNELS, PATTERNS = 192, 16
HEADS = 3  # of self-attention
POOLED_SIDE = 14  # of the keys of MViTv2, where the map is not smaller
PAPER_CONVENTION = 'with norms, without transforms'


class MatmulAttention(SelfAttention):
    """Compute dense self-attention through its N x N maps."""

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, C = x.shape
        q, k, v = self.qkv(x).view(B, H * W, 3, self.num_heads, -1).unbind(2)
        return self.proj(dense_attention(q, k, v).reshape(B, H, W, C))


class PooledAttention(MultiScaleAttention):
    """Attend as MViTv2, https://arxiv.org/abs/2112.01526, does to pooled keys.

    Without a pooling of q, which with a stride of 1 would be one more convolution: so
    its FLOPs are those of the LiSA paper's tables at all five sizes.
    """

    def __init__(self, side: int):
        stride = (max(1, side // POOLED_SIDE),) * 2
        pooling = dict(kernel_kv=(3, 3), stride_kv=stride, has_cls_token=False)
        super().__init__(CHANNELS, CHANNELS, (side, side), HEADS, **pooling)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1, 2), x.shape[1:3])[0].view_as(x)


class NoAttention(SelfAttention):
    """Apply only the projections, a lower bound of the time of every block."""

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.qkv(x).chunk(3, dim=-1)[-1])


def call(block: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
    """Call a block with other parameters, in the order of its own."""
    names = [name for name, _ in block.named_parameters()]
    return functional_call(block, dict(zip(names, parameters, strict=True)), (x,))


class OnMaps(nn.Module):
    """Run a block on maps of the size of an image, for `count`."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, image: Tensor) -> Tensor:
        B, _, H, W = image.shape
        return self.block(image.new_empty(B, H, W, CHANNELS))


def mixers(side: int) -> dict[str, nn.Module]:
    heads = CHANNELS // WIDTH
    return {
        'lisa': StructureAwareAttention(
            CHANNELS, heads, (side, side), patterns=PATTERNS
        ),
        SDPA: SelfAttention(CHANNELS, HEADS),
        BASELINE: MatmulAttention(CHANNELS, HEADS),
        f'{BASELINE}, {heads} heads': MatmulAttention(CHANNELS, heads),
        'convolutional_attention (MViTv2)': PooledAttention(side),
        'no attention': NoAttention(CHANNELS, HEADS),
    }


def make_blocks(side: int) -> dict[str, LiSABlock]:
    """Return blocks in evaluation mode, in which LiSA caches its spectra."""
    mlp = Mlp(CHANNELS, 4 * CHANNELS)
    return {
        method: LiSABlock(CHANNELS, None, mixer, copy.deepcopy(mlp), 0.0).eval()
        for method, mixer in mixers(side).items()
    }


@functools.cache
def columns(side: int) -> dict[str, dict[str, float]]:
    """Return the further columns of each method."""
    result = {}
    for method, block in make_blocks(side).items():
        flops = count(OnMaps(block).to('meta'), (side, side))
        result[method] = {
            'flops_m': round(flops.flops / 1e6, 2),
            'paper_flops_m': round(flops.flops_in(PAPER_CONVENTION) / 1e6, 2),
        }
    return result


def cases(side: int, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, side, side, CHANNELS)
    x, grad = (torch.randn(shape, generator=generator) for _ in range(2))
    x, grad = x.to(device, dtype).requires_grad_(), grad.to(device, dtype)
    blocks = make_blocks(side)
    blocks[SDPA].load_state_dict(blocks[BASELINE].state_dict())
    made = []
    for method, block in blocks.items():
        block.to(device, dtype)
        needs, dft = {}, {}
        if isinstance(block.attn, MatmulAttention):
            needs = map_bytes(batch, side**2, block.attn.num_heads, dtype)
        if isinstance(block.attn, StructureAwareAttention):
            dft = dft_flops(side, batch, CHANNELS, PATTERNS)
        made.append(
            Case(
                method,
                functools.partial(call, block),
                [x, *block.parameters()],
                grad,
                needs=needs,
                same_as=BASELINE if method == SDPA else None,
                dft_flops=dft,
                columns=columns(side)[method],
            )
        )
    return made
