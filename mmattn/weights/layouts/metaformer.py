"""Conversion of CAFormer's weights to the names of networks with parts in common.

CAFormer: Yu et al., "MetaFormer Baselines for Vision",
https://arxiv.org/abs/2210.13452. The layouts are timm's and the authors',
https://github.com/sail-sg/metaformer, which differ in the names alone.
"""

import re
from collections.abc import Mapping

from torch import Tensor

# Regular expressions of parts of names, the authors' and timm's, and what replaces
# them, in this order.
RENAMES = {
    r'^(patch_embed|downsample_layers\.0)\.': 'stem.',
    r'^downsample_layers\.(\d)\.': r'stages.\1.downsample.',
    r'^stages\.(\d)\.(\d+)\.': r'stages.\1.blocks.\2.',
    r'\.(pre|post)_norm\.': '.norm.',
    r'^(stem|stages\.\d\.downsample)\.conv\.': r'\1.proj.',
    r'\.token_mixer\.act1\.': '.attn.act.',
    r'\.token_mixer\.': '.attn.',
    r'\.res_scale(\d)\.scale$': r'.scale\1',
}


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of CAFormer to the names of `IViT`; other names stay.

    Linear layers that are 1x1 convolutions there become matrices.
    """
    converted = {}
    for name, value in state_dict.items():
        for theirs, ours in RENAMES.items():
            name = re.sub(theirs, ours, name)
        is_linear = re.search(r'\.(pwconv|fc)\d\.weight$', name)
        converted[name] = value.flatten(1) if is_linear else value
    return converted
