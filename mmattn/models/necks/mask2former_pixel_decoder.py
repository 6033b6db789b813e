"""Mask2Former's pixel decoder, around the neck of multi-scale deformable attention.

Cheng et al., "Masked-attention Mask Transformer for Universal Image Segmentation",
https://arxiv.org/abs/2112.01527, section 3.2.2. It replaces mmdetection's
`MSDeformAttnPixelDecoder` in a config and takes its settings and weights, since the
head reads the number of levels from deep inside those settings.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import Initializable
from mmattn.ops.common.precision import is_autocast_on
from mmattn.registry import MODELS
from mmattn.weights.layouts.load_hook import load_hook

from .ms_deform_attn_neck import MSDeformAttnNeck

# mmdetection's settings and their defaults; None stands for the pixel decoder's own.
SETTINGS = {
    'encoder': dict(num_layers=6, layer_cfg={}, num_cp=-1, init_cfg=None),
    'layer_cfg': dict(
        self_attn_cfg={}, ffn_cfg={}, norm_cfg=dict(type='LN'), init_cfg=None
    ),
    'self_attn_cfg': dict(
        embed_dims=None,
        num_heads=8,
        num_levels=3,
        num_points=4,
        dropout=0.1,
        im2col_step=64,
        batch_first=True,
        norm_cfg=None,
        value_proj_ratio=1.0,
        init_cfg=None,
    ),
    'ffn_cfg': dict(
        embed_dims=None,
        feedforward_channels=1024,
        ffn_drop=0.0,
        num_fcs=2,
        act_cfg=dict(type='ReLU'),
        dropout_layer=None,
        add_identity=True,
        layer_scale_init_value=0.0,
        init_cfg=None,
    ),
    'positional_encoding': dict(
        num_feats=None, normalize=True, offset=0.0, temperature=10000, init_cfg=None
    ),
}
# Settings that may have other values here; `im2col_step` is ignored.
FREE = {
    *('num_layers', 'num_cp', 'layer_cfg', 'self_attn_cfg', 'ffn_cfg'),
    *('embed_dims', 'num_heads', 'num_levels', 'num_points', 'im2col_step'),
    *('dropout', 'ffn_drop', 'feedforward_channels', 'num_feats', 'offset'),
}
# mmdetection's names of weights, and ours. The first matching prefix is replaced.
NAMES = {
    r'level_encoding\.weight': 'neck.encoder.level_embed',
    r'mask_feature\.': 'mask_features.',
    r'((?:input|lateral|output)_convs\.\d+)\.conv\.': r'neck.\1.0.',
    r'((?:input|lateral|output)_convs\.\d+)\.gn\.': r'neck.\1.1.',
    r'(encoder\.layers\.\d+)\.ffn\.layers\.0\.0\.': r'neck.\1.linear1.',
    r'(encoder\.layers\.\d+)\.ffn\.layers\.1\.': r'neck.\1.linear2.',
    r'(encoder\.layers\.\d+)\.norms\.0\.': r'neck.\1.norm1.',
    r'(encoder\.layers\.\d+)\.norms\.1\.': r'neck.\1.norm2.',
    r'encoder\.': 'neck.encoder.',
}


@MODELS.register_module()
class Mask2FormerPixelDecoder(Initializable):
    """`MSDeformAttnNeck` with the settings and outputs that Mask2Former's heads expect.

    Args:
        in_channels: channels of each input map, from the finest on.
        feat_channels: channels C of the output maps.
        out_channels: channels E of the mask features.
        num_outs: number of output maps, the coarsest ones.
        encoder: settings of the encoder as in mmdetection's configs: `num_layers`,
            `num_cp` (all layers or none recompute their activations in the backward)
            and, in `layer_cfg`, `self_attn_cfg` (`num_heads`, `num_levels`,
            `num_points`, `dropout`) and `ffn_cfg` (`feedforward_channels`, `ffn_drop`).
            Others default to mmdetection's.
        positional_encoding: `normalize` and `offset` of sine positions, as there.
        norm_cfg, act_cfg: only mmdetection's defaults are accepted.
        init_cfg: mmengine initialization.

    Forward:
        Takes maps (B, C_i, H_i, W_i) from the finest on. Returns mask features
        (B, E, H_0, W_0) and a list of maps (B, C, H_i, W_i) from the coarsest on. They
        are computed in the dtype of the weights, float32, under autocast, too.

    Raises:
        ValueError: a setting is not supported, or the numbers of maps disagree.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        feat_channels: int = 256,
        out_channels: int = 256,
        *,
        num_outs: int = 3,
        encoder: Mapping,
        positional_encoding: Mapping | None = None,
        norm_cfg: Mapping | None = None,
        act_cfg: Mapping | None = None,
        init_cfg: dict | list[dict] | None = None,
    ):
        super().__init__()
        for name, given, known in (
            ('norm_cfg', norm_cfg, dict(type='GN', num_groups=32)),
            ('act_cfg', act_cfg, dict(type='ReLU')),
        ):
            if given is not None and without_inplace(given) != known:
                raise UserError(f'{name} must be {known}, got {given}')
        if not 1 <= num_outs <= len(in_channels):
            raise UserError(
                f'num_outs must be from 1 to {len(in_channels)}, got {num_outs=}'
            )
        self.num_outs = num_outs
        self.init_cfg = init_cfg
        num_levels, settings = neck_settings(
            encoder, positional_encoding or dict(normalize=True), feat_channels
        )
        self.neck = MSDeformAttnNeck(
            in_channels,
            feat_channels,
            num_encoder_levels=num_levels,
            encoder=settings,
        )
        self.mask_features = nn.Conv2d(feat_channels, out_channels, kernel_size=1)
        nn.init.kaiming_uniform_(self.mask_features.weight, a=1)
        nn.init.zeros_(self.mask_features.bias)
        self.register_load_state_dict_pre_hook(convert_mmdet_layout)

    def forward(self, feats: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        device_type = feats[0].device.type
        if is_autocast_on(device_type):
            with torch.autocast(device_type, enabled=False):
                return self(feats)
        maps = self.neck([feat.to(self.mask_features.weight.dtype) for feat in feats])
        return self.mask_features(maps[0]), list(maps[::-1][: self.num_outs])


def without_inplace(settings: Mapping) -> dict:
    return {key: value for key, value in settings.items() if key != 'inplace'}


def with_defaults(name: str, given: Mapping) -> dict:
    """Complete the settings `name`; all but those in `FREE` must be the defaults."""
    known = SETTINGS[name]
    for key, value in given.items():
        if isinstance(value, Mapping):
            value = without_inplace(value)
        if key not in known or key not in FREE and value != known[key]:
            raise UserError(
                f'Mask2FormerPixelDecoder: {name} does not support {key}={value!r}'
            )
    return {**known, **given}


def neck_settings(
    encoder: Mapping, positional_encoding: Mapping, embed_dims: int
) -> tuple[int, dict]:
    """Return the encoder's number of levels and other settings from mmdetection's."""
    encoder = with_defaults('encoder', encoder)
    layer = with_defaults('layer_cfg', encoder['layer_cfg'])
    attention = with_defaults('self_attn_cfg', layer['self_attn_cfg'])
    feedforward = with_defaults('ffn_cfg', layer['ffn_cfg'])
    # `normalize` defaults to False in mmdetection.
    positions = with_defaults(
        'positional_encoding', {'normalize': False, **positional_encoding}
    )
    widths = {
        'self_attn_cfg.embed_dims': (attention['embed_dims'], embed_dims),
        'ffn_cfg.embed_dims': (feedforward['embed_dims'], embed_dims),
        'num_feats': (positions['num_feats'], embed_dims // 2),
        'ffn_drop': (feedforward['ffn_drop'], attention['dropout']),
    }
    for key, (value, expected) in widths.items():
        if value not in (None, expected):
            raise UserError(
                f'Mask2FormerPixelDecoder: {key} must be {expected}, as in the other '
                f'settings, got {value}'
            )
    if encoder['num_cp'] not in (-1, 0, encoder['num_layers']):
        raise UserError(
            'Mask2FormerPixelDecoder: num_cp must be -1 or all layers, got '
            f'{encoder["num_cp"]}'
        )
    return attention['num_levels'], dict(
        num_layers=encoder['num_layers'],
        num_heads=attention['num_heads'],
        num_points=attention['num_points'],
        feedforward_channels=feedforward['feedforward_channels'],
        dropout=attention['dropout'],
        position_offset=positions['offset'],
        with_cp=encoder['num_cp'] > 0,
    )


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of mmdetection's pixel decoder, or ours, to our names."""
    return {
        next(
            (
                re.sub(f'^{theirs}', ours, name)
                for theirs, ours in NAMES.items()
                if re.match(theirs, name)
            ),
            name,
        ): value
        for name, value in state_dict.items()
    }


@load_hook
def convert_mmdet_layout(
    module: nn.Module, weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    return convert_state_dict(weights)
