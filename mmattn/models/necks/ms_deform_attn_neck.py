"""Neck of multi-scale deformable attention and a feature pyramid for the finest maps.

It is the pixel decoder of Cheng et al., "Masked-attention Mask Transformer for
Universal Image Segmentation", https://arxiv.org/abs/2112.01527, section 3.2.2, without
the mask features. The encoder of Deformable DETR runs on the coarse maps, and a feature
pyramid adds its result to the finer ones. Official code:
https://github.com/facebookresearch/Mask2Former, MIT.
"""

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import DeformableDETREncoder, Initializable
from mmattn.registry import MODELS

# Settings in which Mask2Former's encoder differs from Deformable DETR's.
MASK2FORMER_ENCODER = dict(dropout=0.0, position_offset=0.0)


def norm_conv(in_channels: int, out_channels: int, **conv) -> nn.Sequential:
    """Build a convolution and a norm of 32 groups, with Mask2Former's weights."""
    layer = nn.Conv2d(in_channels, out_channels, **conv)
    if layer.bias is None:
        nn.init.kaiming_uniform_(layer.weight, a=1)
    else:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layer, nn.GroupNorm(32, out_channels))


@MODELS.register_module()
class MSDeformAttnNeck(Initializable):
    """Neck that encodes the coarse maps and passes their features to the finer ones.

    Args:
        in_channels: channels of each input map, from the finest on.
        out_channels: channels C of all output maps, a multiple of 32.
        num_encoder_levels: how many of the coarsest maps the encoder takes. The finer
            ones have a lateral convolution, to which the next coarser map is added, and
            a 3x3 convolution.
        num_outs: number of output maps; None for as many as input maps. 3x3
            convolutions of stride 2 make further maps from the coarsest input map, as
            Deformable DETR's fourth level. They go through the encoder.
        encoder: settings of the `DeformableDETREncoder` that differ from Mask2Former's,
            which are six layers, no dropout and sine positions without an offset; or a
            config of another registered encoder, with its `type`. The neck sets
            `embed_dims` and `num_levels`.
        init_cfg: mmengine initialization.

    Forward:
        Takes maps (B, C_i, H_i, W_i), each coarser than the one before, and returns a
        tuple of maps (B, C, H_i, W_i) in the same order. There is no padding.

    Raises:
        ValueError: `num_outs` or `num_encoder_levels` do not fit the maps, channels are
            no multiple of 32, or the number of maps is wrong.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int = 256,
        *,
        num_encoder_levels: int = 3,
        num_outs: int | None = None,
        encoder: Mapping | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__()
        self.in_channels = tuple(in_channels)
        num_outs = len(self.in_channels) if num_outs is None else num_outs
        num_extra = num_outs - len(self.in_channels)
        if not (0 <= num_extra < num_encoder_levels <= num_outs):
            raise UserError(
                'num_outs must be at least the number of input maps, and '
                'num_encoder_levels must include one of these, got '
                f'in_channels={self.in_channels}, {num_outs=}, {num_encoder_levels=}'
            )
        if out_channels % 32:
            raise UserError(
                f'out_channels must be a multiple of 32, got {out_channels=}'
            )
        self.init_cfg = init_cfg
        self.num_fine = num_outs - num_encoder_levels
        fine, coarse = (
            self.in_channels[: self.num_fine],
            self.in_channels[self.num_fine :],
        )
        # The encoder takes its levels from the coarsest on.
        self.input_convs = nn.ModuleList(
            norm_conv(channels, out_channels, kernel_size=1)
            for channels in reversed(coarse)
        )
        sources = [self.in_channels[-1], *num_extra * [out_channels]]
        self.extra_convs = nn.ModuleList(
            norm_conv(channels, out_channels, kernel_size=3, stride=2, padding=1)
            for channels in sources[:num_extra]
        )
        self.encoder = build_encoder(encoder, out_channels, num_encoder_levels)
        self.lateral_convs = nn.ModuleList(
            norm_conv(channels, out_channels, kernel_size=1, bias=False)
            for channels in reversed(fine)
        )
        self.output_convs = nn.ModuleList(
            norm_conv(
                out_channels, out_channels, kernel_size=3, padding=1, bias=False
            ).append(nn.ReLU())
            for _ in fine
        )

    def forward(self, feats: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if len(feats) != len(self.in_channels):
            raise UserError(
                f'needs maps of {self.in_channels} channels, got '
                f'{[tuple(feat.shape) for feat in feats]}'
            )
        fine, coarse = feats[: self.num_fine], feats[self.num_fine :]
        extra, x = [], feats[-1]
        for conv in self.extra_convs:
            x = conv(x)
            extra.append(x)
        inputs = [
            conv(feat)
            for conv, feat in zip(self.input_convs, reversed(coarse), strict=True)
        ]
        maps = list(self.encoder([*reversed(extra), *inputs]))
        for feat, lateral, output in zip(
            reversed(fine), self.lateral_convs, self.output_convs, strict=True
        ):
            x = lateral(feat)
            above = F.interpolate(maps[-1], x.shape[2:], mode='bilinear')
            maps.append(output(x + above))
        return tuple(reversed(maps))


def build_encoder(
    settings: Mapping | None, embed_dims: int, num_levels: int
) -> nn.Module:
    given = dict(embed_dims=embed_dims, num_levels=num_levels)
    settings = settings or {}
    if repeated := sorted(given.keys() & settings.keys()):
        raise UserError(f'encoder: the neck sets {repeated}, got {settings}')
    if 'type' in settings:
        return MODELS.build(dict(settings, **given))
    return DeformableDETREncoder(**{**MASK2FORMER_ENCODER, **settings}, **given)
