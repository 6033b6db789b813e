"""LiSANet written plainly from its papers, on channels-first maps, without modules.

Kwon et al., "Lightweight Structure-Aware Attention for Visual Understanding",
https://arxiv.org/abs/2211.16289: section 4 and equations 12 to 14 for the operator,
Tables 2 and 11 for the stages. Patch embeddings and MLPs come from PVTv2
(https://arxiv.org/abs/2106.13797), the residual conv position embedding is UniFormer's
(https://arxiv.org/abs/2201.09450), and the convolution blocks follow CAFormer
(https://arxiv.org/abs/2210.13452). The operator goes through dense matrices.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-6  # of all norms and of the L2 norm of queries and keys


class LiSANetRewrite:
    """Compute the maps of all stages, before the norms that end them.

    Args:
        weights: parameters by the names of `LiSANet`.
        depths: number of blocks of each stage; one stage is the plain network.
        conv_stages: number of stages of convolution blocks.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], depths: tuple[int, ...], conv_stages: int
    ):
        self.weights = weights
        self.depths = depths
        self.conv_stages = conv_stages
        self.plain = len(depths) == 1

    def __call__(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage, depth in enumerate(self.depths):
            x = self.patches(stage, x)
            for i in range(depth):
                place = f'blocks.{i}' if self.plain else f'stages.{stage}.blocks.{i}'
                x = self.block(stage, place, x)
            maps.append(x)
        return maps

    def get(self, name: str) -> tuple[Tensor, Tensor | None]:
        return self.weights[f'{name}.weight'], self.weights.get(f'{name}.bias')

    def conv(self, name: str, x: Tensor, **kwargs) -> Tensor:
        return F.conv2d(x, *self.get(name), **kwargs)

    def depthwise(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.get(name)
        padding = weight.shape[-1] // 2
        return F.conv2d(x, weight, bias, padding=padding, groups=x.shape[1])

    def linear(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.get(name)
        out = torch.einsum('oc,bchw->bohw', weight, x)
        return out if bias is None else out + bias[:, None, None]

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.get(name)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).square().mean(1, keepdim=True)
        x = (x - mean) / (variance + EPSILON).sqrt()
        return x * weight[:, None, None] + bias[:, None, None]

    def activation(self, name: str, x: Tensor) -> Tensor:
        """Apply StarReLU where it has parameters, GELU otherwise."""
        if f'{name}.scale' in self.weights:
            scale, bias = self.weights[f'{name}.scale'], self.weights[f'{name}.bias']
            return scale * x.clamp(min=0) ** 2 + bias
        return x * (1 + torch.erf(x / 2**0.5)) / 2

    def patches(self, stage: int, x: Tensor) -> Tensor:
        name = 'stem' if stage == 0 else f'stages.{stage}.downsample'
        if self.plain:
            x = self.conv(f'{name}.proj', x, stride=16)
            positions = self.weights['stem.pos_embed'][0]  # (N, C), row after row
            return x + positions.t().view(1, -1, *x.shape[2:])
        kernel, stride = (7, 4) if stage == 0 else (3, 2)
        x = self.conv(f'{name}.proj', x, stride=stride, padding=kernel // 2)
        return self.norm(f'{name}.norm', x)

    def block(self, stage: int, name: str, x: Tensor) -> Tensor:
        if not self.plain:
            x = x + self.depthwise(f'{name}.position', x)
        mixer = self.convolved if stage < self.conv_stages else self.attended
        x = x + mixer(f'{name}.attn', self.norm(f'{name}.norm1', x))
        mlp = self.mlp if self.plain else self.conv_mlp
        return x + mlp(f'{name}.mlp', self.norm(f'{name}.norm2', x))

    def mlp(self, name: str, x: Tensor) -> Tensor:
        x = self.activation(f'{name}.act', self.linear(f'{name}.fc1', x))
        return self.linear(f'{name}.fc2', x)

    def conv_mlp(self, name: str, x: Tensor) -> Tensor:
        x = self.depthwise(f'{name}.dwconv', self.linear(f'{name}.fc1', x))
        return self.linear(f'{name}.fc2', self.activation(f'{name}.act', x))

    def convolved(self, name: str, x: Tensor) -> Tensor:
        x = self.activation(f'{name}.act', self.linear(f'{name}.pwconv1', x))
        return self.linear(f'{name}.pwconv2', self.depthwise(f'{name}.dwconv', x))

    def attended(self, name: str, x: Tensor) -> Tensor:
        """Split `qkv` into queries, keys and values, each with heads of 16 channels."""
        w_a, w_b, b = (self.weights[f'{name}.{key}'] for key in ('w_a', 'w_b', 'bias'))
        B, _, H, W = x.shape
        qkv = self.linear(f'{name}.qkv', x).view(B, 3, -1, 16, H * W)
        q, k, v = qkv.unbind(1)  # (B, heads, 16, N)
        q, k = (t / (t.square().sum(2, keepdim=True) + EPSILON).sqrt() for t in (q, k))
        r_a, r_b = circulant(w_a), circulant(w_b)  # (16, K, N, N), (K, N, N)
        patterns = torch.einsum('bmci,bmcn,ckin->bmki', q, k, r_a)
        kernels = torch.einsum('bmki,kij->bmij', patterns, r_b)
        out = torch.einsum('bmij,bmcj->bmci', kernels, v)
        out = out + torch.einsum('ck,bmki->bmci', b, patterns)
        out = self.norm(f'{name}.norm', out.reshape(B, -1, H, W))
        return self.linear(f'{name}.proj', out)


def circulant(kernel: Tensor) -> Tensor:
    """Turn kernels (..., H, W) to matrices (..., N, N) of taps from column to row."""
    H, W = kernel.shape[-2:]
    pixels = [(y, x) for y in range(H) for x in range(W)]
    rows = [
        torch.stack([kernel[..., (y - v) % H, (x - u) % W] for v, u in pixels], -1)
        for y, x in pixels
    ]
    return torch.stack(rows, -2)
