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

from mmattn.analysis import count
from mmattn.models.backbones.lisanet import LiSABlock
from mmattn.models.backbones.vit import SelfAttention
from mmattn.models.layers import StructureAwareAttention

from .blocks import MatmulAttention, OnMaps, block_cases
from .case import Case
from .structure_aware_attention import WIDTH, dft_flops

SIDES = (7, 14, 28, 56, 84)
BASELINE = 'self_attention (matmul)'
SDPA = 'self_attention (SDPA)'
CHANNELS, PATTERNS = 192, 16
HEADS = 3  # of self-attention
POOLED_SIDE = 14  # of the keys of MViTv2, where the map is not smaller
PAPER_CONVENTION = 'with norms, without transforms'


class PooledAttention(MultiScaleAttention):
    """Attend as MViTv2, https://arxiv.org/abs/2112.01526, does to pooled keys.

    Without a pooling of q, which with a stride of 1 would be one more convolution: so
    its FLOPs equal the LiSA paper's tables at all five sizes.
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
        flops = count(OnMaps(block, CHANNELS).to('meta'), (side, side))
        result[method] = {
            'flops_m': round(flops.flops / 1e6, 2),
            'paper_flops_m': round(flops.flops_in(PAPER_CONVENTION) / 1e6, 2),
        }
    return result


def cases(side: int, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    def transforms(block: LiSABlock) -> dict:
        if isinstance(block.attn, StructureAwareAttention):
            return dft_flops(side, batch, CHANNELS, PATTERNS)
        return {}

    return block_cases(
        make_blocks(side),
        (batch, side, side, CHANNELS),
        device,
        dtype,
        columns(side),
        same_as={SDPA: BASELINE},
        dft_flops=transforms,
    )
