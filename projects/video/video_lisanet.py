"""VideoLiSANet: LiSANet and HyLiSANet on clips.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289, section 5.4 and appendix
A.2. Depthwise convolutions become three-dimensional, structure-aware attention takes
T x H x W tokens, the first patch embedding halves the number of frames, and the weights
of an image network are inflated. No official code is known. The paper does not state
the sizes of the temporal kernels, how weights are inflated, or what convolutions see
beyond the ends of a clip. Kernels of 3 frames reproduce the FLOPs of its Tables 8 and
14.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models import LiSANet
from mmattn.models.backbones.lisanet import HEAD_DIMS
from mmattn.models.layers import (
    DepthwiseConv,
    StructureAwareAttention,
    pad_to_patches,
)
from mmattn.models.layers.depthwise_conv import depthwise_conv2d
from projects.lisa_ablations.network import MIXERS

KERNEL_FRAMES = 3
FRAME_STRIDE = 2  # of the first patch embedding
# LiSA, and the operators of its ablations that support grids of three sides.
VIDEO_MIXERS = (
    'lisa',
    'self_attention',
    'self_attention_rpe',
    'depthwise',
    'global_filter',
    'lambda',
    'rsa',
)


def inflate(weight: Tensor, dim: int, frames: int, center: int | None) -> Tensor:
    """Insert an axis of time into a convolution kernel of images.

    A still clip gets the response of an image. With `center`, so does each frame of any
    clip.

    Args:
        weight: kernel of images.
        dim: place of the new axis.
        frames: number of temporal taps.
        center: tap that gets the kernel, while the others are 0; None gives each tap
            the same share.
    """
    if center is None:
        return (weight / frames).unsqueeze(dim).repeat_interleave(frames, dim)
    inflated = weight.new_zeros(*weight.shape[:dim], frames, *weight.shape[dim:])
    inflated.select(dim, center).copy_(weight)
    return inflated


class ClipConv(nn.Conv3d):
    """A convolution of images with an axis of time; shape (B, T, H, W, C) in and out.

    Beyond the ends of the clip it sees the first and the last frame again, so that a
    still clip stays still.

    Args:
        conv: convolution of images, whose settings and bias are taken over.
        frames: temporal taps, an odd number.
        stride: frames from one output to the next.
    """

    def __init__(self, conv: nn.Conv2d, frames: int = KERNEL_FRAMES, stride: int = 1):
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            (frames, *conv.kernel_size),
            (stride, *conv.stride),
            (0, *conv.padding),
            groups=conv.groups,
            bias=False,
        )
        nn.init.trunc_normal_(self.weight, std=0.02)
        self.bias = conv.bias
        self.residual = isinstance(conv, DepthwiseConv) and conv.residual

    def forward(self, x: Tensor) -> Tensor:
        (B, T), clip = x.shape[:2], x
        taps, stride = self.kernel_size[0], self.stride[0]
        pad = taps // 2
        x = torch.cat([*[x[:, :1]] * pad, x, *[x[:, -1:]] * pad], 1)
        frames = [x[:, tap : tap + T : stride].flatten(0, 1) for tap in range(taps)]
        # Convolutions of images: oneDNN has no fast depthwise convolution of clips.
        if self.groups > 1:
            kernels = self.weight.unbind(2)
            out = depthwise_conv2d(frames[0], kernels[0], self.bias)
            for image, kernel in zip(frames[1:], kernels[1:], strict=True):
                out = out + depthwise_conv2d(image, kernel)
        else:
            out = F.conv2d(
                torch.cat(frames, -1).permute(0, 3, 1, 2),  # (B * T', taps * C, H, W)
                self.weight.transpose(1, 2).flatten(1, 2),
                self.bias,
                self.stride[1:],
                self.padding[1:],
            ).permute(0, 2, 3, 1)
        out = out.unflatten(0, (B, -1))
        return clip + out if self.residual else out


class ClipEmbed(nn.Module):
    """A patch embedding of images on clips, without positions; channels last."""

    def __init__(self, embed: nn.Module, frames: int, stride: int):
        super().__init__()
        self.patch_size = getattr(embed, 'patch_size', 1)
        self.proj = ClipConv(embed.proj, frames, stride)
        self.norm = getattr(embed, 'norm', nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        x = pad_to_patches(x.movedim(-1, 1), self.patch_size).movedim(1, -1)
        return self.norm(self.proj(x))


@MODELS.register_module()
class VideoLiSANet(LiSANet):
    """LiSANet on clips, with the names of its parameters.

    `load_state_dict` inflates the weights of an image network of several stages. A
    still clip then gives the image network's maps at all times.

    Args:
        arch, in_channels, patterns, kernel_resize, drop_path_rate, out_indices,
            out_norm, frozen_stages, with_cp, init_cfg: as in `LiSANet`. The isotropic
            network has no position embedding here, since the parameters in the paper's
            Table 14 do not contain one.
        num_frames: frames T of the clips that the kernels are made for. They are
            resized for other clips, as for other sizes of the images.
        mixer: mixer of the isotropic network, one of `VIDEO_MIXERS`, to reproduce the
            paper's Table 14. Those with tables support only clips of `num_frames` and
            `img_size`.
        img_size: side of the frames, or (height, width).
        inflation: 'average' gives each temporal tap of an inflated kernel the same
            share, as I3D does; 'center' gives the middle tap all, so that the network
            starts as the image network on every second frame.

    Forward:
        Takes clips (B, 3, T, H, W) and returns a tuple of maps
        (B, C_i, ceil(T / 2), H_i, W_i).

    Raises:
        ValueError: unknown arch, mixer, stage index or setting, or weights of an image
            network that cannot be inflated.
    """

    image_sides = 'T', 'H', 'W'

    def __init__(
        self,
        arch: str | dict = 'hybrid_small',
        *,
        num_frames: int = 16,
        mixer: str = 'lisa',
        img_size: int | tuple[int, int] = 224,
        patterns: int | None = None,
        kernel_resize: str = 'gfnet',
        inflation: str = 'average',
        out_indices: int | Sequence[int] | None = None,
        out_norm: bool = True,
        **frame,
    ):
        if num_frames < 1:
            raise UserError(
                f'VideoLiSANet: num_frames must be 1 or more, got {num_frames}'
            )
        if inflation not in ('average', 'center'):
            raise UserError(
                "VideoLiSANet: inflation must be 'average' or 'center', "
                f'got {inflation!r}'
            )
        plain = len(self.resolve_arch(arch)['depths']) == 1
        mixers = VIDEO_MIXERS if plain else VIDEO_MIXERS[:1]
        if mixer not in mixers:
            raise UserError(
                f'VideoLiSANet: mixer of a network of '
                f'{"one stage" if plain else "several stages"} must be one of '
                f'{list(mixers)}, got {mixer!r}'
            )
        self.mixer, self.num_times = mixer, -(-num_frames // FRAME_STRIDE)
        super().__init__(
            arch,
            img_size=img_size,
            patterns=patterns,
            kernel_resize=kernel_resize,
            out_indices=out_indices,
            out_norm=out_norm,
            **frame,
        )
        self.inflation = inflation
        self.stem = ClipEmbed(self.stem, KERNEL_FRAMES, FRAME_STRIDE)
        for stage in [] if self.plain else self.stages[1:]:
            stage.downsample = ClipEmbed(stage.downsample, 1, 1)
        _replace_depthwise(self)
        self.freeze()

    def make_attention(
        self, channels: int, grid: tuple[int, int], **settings
    ) -> nn.Module:
        """Return the attention of a block, made for a grid of three sides."""
        grid = self.num_times, *grid
        if self.mixer == 'lisa':
            return super().make_attention(channels, grid, **settings)
        heads = channels // HEAD_DIMS
        return MIXERS[self.mixer](channels, heads, grid, settings['patterns'], None)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args):
        if self.plain and f'{prefix}stem.pos_embed' in state_dict:
            raise UserError(
                'VideoLiSANet: the weights of an isotropic image network cannot be '
                'inflated, since the video network has no position embedding; load '
                'layers of a network of several stages'
            )
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name, module in self.named_modules():
            if isinstance(module, ClipConv):
                kernels = {'weight': 2}
                center = module.kernel_size[0] // 2
            elif isinstance(module, StructureAwareAttention):
                kernels = {'w_a': 2, 'w_b': 1}
                center = 0  # offset 0 of a circular kernel
            else:
                continue
            for kernel, dim in kernels.items():
                key, own = f'{prefix}{name}.{kernel}', getattr(module, kernel)
                loaded = state_dict.get(key)
                if loaded is None or loaded.dim() != own.dim() - 1:
                    continue
                state_dict[key] = inflate(
                    loaded,
                    dim,
                    own.shape[dim],
                    center if self.inflation == 'center' else None,
                )


def _replace_depthwise(module: nn.Module):
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, DepthwiseConv):
                setattr(parent, name, ClipConv(child))
