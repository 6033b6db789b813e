"""Conversion of PVT's and PVT v2's weights between the names of several code bases.

The layouts are 'official' (https://github.com/whai362/PVT and, for the encoders of
SegFormer, https://github.com/NVlabs/SegFormer), 'mmdet' (and mmsegmentation, SegFormer
alone), 'timm' (PVT v2 alone), 'huggingface' and 'mmattn'. Classifiers keep their
weights, with the name `head`.

Transformers 5 has new names for SegFormer in memory, and the old ones in files.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from . import layouts

STAGES = range(4)
PATCHES = 'stem.', *(f'stages.{i}.downsample.' for i in STAGES[1:])
TOKEN = f'{PATCHES[-1]}cls_token'
NORM = 'out_norms.3.'  # after the class token

# Regular expression of a name that no layout below it has.
MARKERS = {
    'mmattn': r'stem\.proj\.weight',
    'official': r'block1\.0\.attn\.kv\.weight',
    'mmdet': r'layers\.0\.1\.[01]\.attn\.attn\.in_proj_weight',
    'timm': r'stages\.0\.blocks\.0\.attn\.kv\.weight',
    'huggingface': r'(pvt\.|pvt_v2\.|segformer\.)?'
    r'(encoder\.(block\.0|layers\.0\.blocks)\.0\.attention\.(self\.)?key'
    r'|stages\.0\.blocks\.0\.attention\.k_proj)\.weight',
}
# Prefixes of names, theirs and ours. The first matching prefix is replaced.
PREFIXES = {
    'official': {
        'cls_token': TOKEN,
        **{f'pos_embed{i + 1}': f'{PATCHES[i]}pos_embed' for i in STAGES},
        **{f'patch_embed{i + 1}.': PATCHES[i] for i in STAGES},
        **{f'block{i + 1}.': f'stages.{i}.blocks.' for i in STAGES},
        **{f'norm{i + 1}.': f'stages.{i}.norm.' for i in STAGES},
        'norm.': NORM,
    },
    'mmdet': {
        **{f'layers.{i}.0.': PATCHES[i] for i in STAGES},
        **{f'layers.{i}.1.0.pos_embed': f'{PATCHES[i]}pos_embed' for i in STAGES},
        **{f'layers.{i}.1.': f'stages.{i}.blocks.' for i in STAGES},
        **{f'layers.{i}.2.': f'stages.{i}.norm.' for i in STAGES},
    },
    'timm': {'patch_embed.': 'stem.'},
    'huggingface': {
        'encoder.patch_embeddings.3.cls_token': TOKEN,
        **{
            f'encoder.patch_embeddings.{i}.position_embeddings': f'{patches}pos_embed'
            for i, patches in enumerate(PATCHES)
        },
        **{f'encoder.patch_embeddings.{i}.': PATCHES[i] for i in STAGES},
        **{f'encoder.block.{i}.': f'stages.{i}.blocks.' for i in STAGES},
        **{f'encoder.layer_norm.{i}.': f'stages.{i}.norm.' for i in STAGES},
        'encoder.layer_norm.': NORM,
        **{f'encoder.layers.{i}.patch_embedding.': PATCHES[i] for i in STAGES},
        'encoder.layers.': 'stages.',
        **{f'stages.{i}.patch_embeddings.': PATCHES[i] for i in STAGES},
        'classifier.': 'head.',
    },
}
# Other parts of names, theirs and ours. All matching parts are replaced.
PARTS = {
    'official': {'.dwconv.dwconv.': '.dwconv.'},
    'mmdet': {
        '.projection.': '.proj.',
        '.attn.attn.in_proj_': '.attn.in_proj_',
        '.attn.attn.out_proj.': '.attn.proj.',
        '.ffn.layers.0.': '.mlp.fc1.',
        '.ffn.layers.1.': '.mlp.dwconv.',
        '.ffn.layers.3.': '.mlp.fc2.',
        '.ffn.layers.4.': '.mlp.fc2.',
    },
    'timm': {},
    'huggingface': {
        '.projection.': '.proj.',
        '.sequence_reduction.layer_norm.': '.norm.',
        '.sequence_reduction.sequence_reduction.': '.sr.',
        '.layer_norm.': '.norm.',
        '.layer_norm_1.': '.norm1.',
        '.layer_norm_2.': '.norm2.',
        '.layernorm_before.': '.norm1.',
        '.layernorm_after.': '.norm2.',
        '.attention.output.dense.': '.attn.proj.',
        '.attention.self.': '.attn.',
        '.attention.': '.attn.',
        '.query.': '.q.',
        '.q_proj.': '.q.',
        '.k_proj.': '.key.',
        '.v_proj.': '.value.',
        '.o_proj.': '.proj.',
        '.sequence_reduction.': '.sr.',
        '.spatial_reduction.': '.sr.',
        '.dense1.': '.fc1.',
        '.dense2.': '.fc2.',
        '.dwconv.dwconv.': '.dwconv.',
    },
}


def layout_of(state_dict: Mapping[str, Tensor]) -> str:
    """Return the layout: 'official', 'mmdet', 'timm', 'huggingface' or 'mmattn'.

    Raises:
        ValueError: it is none of them.
    """
    return layouts.layout_of(state_dict, MARKERS, 'PVT')


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of any layout to our names and shapes.

    Unknown names stay, and are reported when the weights are loaded.

    Raises:
        ValueError: the layout is unknown.
    """
    layout = layout_of(state_dict)
    if layout == 'mmattn':
        return dict(state_dict)
    converted = {
        _renamed(name, PREFIXES[layout], PARTS[layout]): value
        for name, value in state_dict.items()
    }
    if layout == 'mmdet':
        return _from_mmdet(converted)
    if layout == 'huggingface':
        return _from_huggingface(converted)
    return converted


def to_official_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of any layout to the official code's names.

    In the official code, `pos_embed4` of PVT has a position for the class token even
    without a class token. It is not added to weights without one.

    Raises:
        ValueError: the layout is unknown.
    """
    prefixes = {ours: theirs for theirs, ours in PREFIXES['official'].items()}
    parts = {ours: theirs for theirs, ours in PARTS['official'].items()}
    return {
        _renamed(name, prefixes, parts): value
        for name, value in convert_state_dict(state_dict).items()
    }


def convert_known_layouts(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Convert weights of a known layout; others stay, for loading to report them."""
    if layouts.find_layout(weights, MARKERS) is None:
        return weights
    return convert_state_dict(weights)


def _renamed(name: str, prefixes: Mapping[str, str], parts: Mapping[str, str]) -> str:
    name = re.sub(r'^(pvt|pvt_v2|segformer)\.', '', name)
    for old, new in prefixes.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
            break
    for old, new in parts.items():
        name = name.replace(old, new)
    return name


def _from_mmdet(renamed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renumber the blocks, which follow positions, and flatten 1x1 convolutions."""
    shift = int('stem.pos_embed' in renamed)
    converted = {}
    for name, value in renamed.items():
        name = re.sub(
            r'(?<=\.blocks\.)\d+', lambda number: str(int(number[0]) - shift), name
        )
        if '.attn.in_proj_' in name:
            C = len(value) // 3
            converted[name.replace('.in_proj_', '.q.')] = value[:C]
            converted[name.replace('.in_proj_', '.kv.')] = value[C:]
        else:
            is_linear = re.search(r'\.mlp\.fc\d\.weight$', name)
            converted[name] = value.flatten(1) if is_linear else value
    return converted


def _from_huggingface(renamed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join keys and values, which have linear layers of their own."""
    converted = {}
    for name, value in renamed.items():
        if '.attn.key.' in name:
            both = value, renamed[name.replace('.key.', '.value.')]
            converted[name.replace('.key.', '.kv.')] = torch.cat(both)
        elif '.attn.value.' not in name:
            converted[name] = value
    return converted
