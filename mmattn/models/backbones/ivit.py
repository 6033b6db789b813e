"""IViT: convolution blocks, then interactive attention, in a MetaFormer frame.

Kang, Yang and Ryu, "Interactive Multi-Head Self-Attention with Linear Complexity",
https://arxiv.org/abs/2402.17507, section 3.3 and Table 1. No official code is known.
It follows the frame of CAFormer (Yu et al., "MetaFormer Baselines for Vision",
https://arxiv.org/abs/2210.13452), although the text says PoolFormer; see
`docs/readings/index.md`.

The paper gives depths, channels, heads, the types of the four stages, an MLP ratio of 4
and 49 landmarks. The rest is inferred, since it reproduces the paper's parameter and
FLOP tables: the CAFormer frame without biases, residual scales in stages 3 and 4, the
3x3 kernel of the convolution blocks, and the inside of `InteractiveAttention`.

Weights of CAFormer load: they are a start for all but the inside of the attention.

Channels come last inside the network, so linear layers and layer norms need no copies
and depthwise convolutions see PyTorch's channels_last memory format.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from mmattn.models.layers import (
    DropPath,
    GridConv,
    InteractiveAttention,
    PointwiseMlp,
    SeparableConv,
    StarReLU,
    init_linear_and_conv,
    init_stem_bias,
)
from mmattn.ops.common.precision import cast_together
from mmattn.registry import MODELS
from mmattn.weights.layouts.metaformer import convert_state_dict

from .base_backbone import BaseBackbone

ARCH = 'embed_dims', 'depths', 'num_heads'


def layer_norm(embed_dims: int) -> nn.LayerNorm:
    return nn.LayerNorm(embed_dims, eps=1e-6, bias=False)


class MetaFormerBlock(nn.Module):
    """Block that computes `x = s1 x + attn(norm x)`, then `x = s2 x + mlp(norm x)`."""

    def __init__(
        self, embed_dims: int, attn: nn.Module, drop_path: float, scale_residual: bool
    ):
        super().__init__()
        self.norm1 = layer_norm(embed_dims)
        self.attn = attn
        self.norm2 = layer_norm(embed_dims)
        self.mlp = PointwiseMlp(embed_dims, 4 * embed_dims, StarReLU, bias=False)
        self.drop_path = DropPath(drop_path)
        for name in ('scale1', 'scale2'):
            scale = nn.Parameter(torch.ones(embed_dims)) if scale_residual else None
            self.register_parameter(name, scale)

    def forward(self, x: Tensor) -> Tensor:
        # Autocast's dtype, else a map of it becomes float32.
        scale1, scale2 = cast_together(x.dtype, self.scale1, self.scale2)
        x = self._add(x, scale1, self.drop_path(self.attn(self.norm1(x))))
        return self._add(x, scale2, self.drop_path(self.mlp(self.norm2(x))))

    @staticmethod
    def _add(x: Tensor, scale: Tensor | None, branch: Tensor) -> Tensor:
        if scale is None:
            return x + branch
        if not torch.is_grad_enabled() or torch.jit.is_tracing():
            return torch.addcmul(branch, scale, x)
        return scale * x + branch  # the gradients of addcmul take two more kernels


class Downsampling(nn.Module):
    """Strided convolution, with the settings `conv`, and a norm; channels come last.

    The norm is before the convolution or, in the stem, after it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        norm_first: bool,
        **conv: int,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.proj = GridConv(in_channels, out_channels, **conv)
        self.norm = layer_norm(in_channels if norm_first else out_channels)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = self.norm(x)
        x = self.proj(x)
        return x if self.norm_first else self.norm(x)


@MODELS.register_module()
class IViT(BaseBackbone):
    """Interactive Vision Transformer.

    Args:
        arch: 'nano' (ours, for demos and tests), 'tiny', 'small', 'base', or a dict
            with `embed_dims` (4), `depths` (4) and `num_heads` (of stages 3 and 4).
        out_indices: stages whose maps are returned, 0 to 3.
        out_norm: see `BaseBackbone`. Classification sets it to False, since its head
            norms after pooling.
        landmarks: side of the landmark grid; 7 gives the paper's 49 landmarks. The
            paper's FLOPs of segmentation fit 14.
        interact_expand, local_kernel, gate: see `InteractiveAttention`; equation 7 as
            printed is `interact_expand=1, local_kernel=None, gate=False`.
        conv_kernel: depthwise kernel of the convolution blocks in stages 1 and 2.
        backend: backend of the operator; None takes the fastest.
        in_channels, drop_path_rate, frozen_stages, with_cp, compile, init_cfg: see
            `BaseBackbone`.

    Forward:
        Takes images (B, 3, H, W) of 32 or more pixels a side and returns a tuple of
        maps (B, C_i, H_i, W_i) at strides 4, 8, 16 and 32. Smaller images work while
        every stage keeps a pixel.

    Raises:
        ValueError: unknown arch, stage index or operator setting.
    """

    min_side = 3  # the stem's kernel of 7, less its padding
    arch_zoo = {
        name: dict(zip(ARCH, row, strict=True))
        for name, row in {
            'nano': ((32, 64, 160, 256), (2, 2, 6, 2), (5, 8)),
            'tiny': ((64, 128, 320, 512), (3, 3, 9, 3), (10, 16)),
            'small': ((64, 128, 320, 512), (3, 12, 18, 3), (10, 16)),
            'base': ((96, 192, 384, 576), (3, 12, 18, 3), (12, 18)),
        }.items()
    }

    starts = {
        'tiny': 'timm://caformer_s18.sail_in1k',
        'small': 'timm://caformer_s36.sail_in1k',
        'base': 'timm://caformer_m36.sail_in1k',
    }

    def __init__(
        self,
        arch: str | Mapping = 'tiny',
        *,
        out_norm: bool = True,
        landmarks: int = 7,
        interact_expand: int | None = 2,
        local_kernel: int | None = 7,
        gate: bool = True,
        conv_kernel: int = 3,
        backend: str | None = None,
        **frame,
    ):
        arch = self.resolve_arch(arch)
        embed_dims, depths = arch['embed_dims'], arch['depths']
        super().__init__(embed_dims, **frame)

        def attention(stage: int) -> nn.Module:
            if stage < 2:
                return SeparableConv(embed_dims[stage], conv_kernel)
            return InteractiveAttention(
                embed_dims[stage],
                arch['num_heads'][stage - 2],
                landmarks=landmarks,
                interact_expand=interact_expand,
                local_kernel=local_kernel,
                gate=gate,
                backend=backend,
            )

        def block(stage: int, drop_path: float) -> MetaFormerBlock:
            attn = attention(stage)
            return MetaFormerBlock(embed_dims[stage], attn, drop_path, stage >= 2)

        stem = dict(kernel_size=7, stride=4, padding=2, norm_first=False)
        self.stem = Downsampling(self.in_channels, embed_dims[0], **stem)
        down = dict(kernel_size=3, stride=2, padding=1, norm_first=True)
        self.build_stages(depths, partial(Downsampling, **down), block)
        self.build_out_norms(out_norm, eps=1e-6, bias=False)
        self.apply(init_linear_and_conv)
        init_stem_bias(self.stem)
        self.freeze()

    def convert_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return convert_state_dict(weights)
