"""Conversion of Deformable DETR's weights between the names of several code bases.

The layouts are 'official' (https://github.com/fundamentalvision/Deformable-DETR),
'mmdet', 'huggingface' (https://github.com/huggingface/transformers, the names of
versions 4 and 5) and 'mmattn', our detector's. The detector's neck is mmdet's
`ChannelMapper`; the official code has biases in its convolutions, `bias=True`.

Backbones keep their own names; a ResNet's are the same in all layouts. Classes
stay, too: the authors published weights for COCO's 91 category ids, which
`coco_classes` converts to its 80 classes.
"""

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from mmattn.errors import UserError

from . import layouts
from .load_hook import load_hook

# Regular expression of a name that no other layout has.
MARKERS = {
    'official': 'transformer.level_embed',
    'mmdet': 'level_embed',
    'huggingface': 'model.level_embed',
    'mmattn': 'encoder.level_embed',
}
STARTS = 'reference_points|enc_output|enc_output_norm|pos_trans|pos_trans_norm'
# Replacements in names, in this order. `input_proj`, `class_embed`, `bbox_embed`
# and Hugging Face's queries, keys and values remain, to be treated by themselves.
REPLACEMENTS = {
    'official': {
        r'^transformer\.level_embed$': 'encoder.level_embed',
        r'^transformer\.(encoder|decoder)\.layers\.': r'\1.layers.',
        r'^transformer\.decoder\.(class_embed|bbox_embed)\.': r'\1.',
        rf'^transformer\.({STARTS})\.': r'decoder.\1.',
        r'^query_embed\.': 'decoder.query_embed.',
        r'^backbone\.0\.body\.': 'backbone.',
    },
    'mmdet': {
        r'^level_embed$': 'encoder.level_embed',
        r'^query_embedding\.': 'decoder.query_embed.',
        r'^reference_points_fc\.': 'decoder.reference_points.',
        r'^memory_trans_fc\.': 'decoder.enc_output.',
        r'^memory_trans_norm\.': 'decoder.enc_output_norm.',
        r'^pos_trans_fc\.': 'decoder.pos_trans.',
        r'^pos_trans_norm\.': 'decoder.pos_trans_norm.',
        r'^(decoder\.layers\.\d+\.self_attn)\.attn\.': r'\1.',
        r'^((?:en|de)coder\.layers\.\d+)\.ffn\.layers\.0\.0\.': r'\1.linear1.',
        r'^((?:en|de)coder\.layers\.\d+)\.ffn\.layers\.1\.': r'\1.linear2.',
        r'^(encoder\.layers\.\d+)\.norms\.0\.': r'\1.norm1.',
        r'^(encoder\.layers\.\d+)\.norms\.1\.': r'\1.norm2.',
        r'^(decoder\.layers\.\d+)\.norms\.0\.': r'\1.norm2.',
        r'^(decoder\.layers\.\d+)\.norms\.1\.': r'\1.norm1.',
        r'^(decoder\.layers\.\d+)\.norms\.2\.': r'\1.norm3.',
    },
    'huggingface': {
        r'^model\.level_embed$': 'encoder.level_embed',
        r'^model\.backbone\.(?:conv_encoder\.)?model\.': 'backbone.',
        r'^model\.input_proj\.': 'input_proj.',
        r'^model\.query_position_embeddings\.': 'decoder.query_embed.',
        rf'^model\.({STARTS})\.': r'decoder.\1.',
        r'^model\.decoder\.(class_embed|bbox_embed)\.': r'\1.',
        r'^model\.(encoder|decoder)\.layers\.': r'\1.layers.',
        r'^(encoder\.layers\.\d+)\.self_attn_layer_norm\.': r'\1.norm1.',
        r'^(encoder\.layers\.\d+)\.final_layer_norm\.': r'\1.norm2.',
        r'^(decoder\.layers\.\d+)\.self_attn_layer_norm\.': r'\1.norm2.',
        r'^(decoder\.layers\.\d+)\.encoder_attn_layer_norm\.': r'\1.norm1.',
        r'^(decoder\.layers\.\d+)\.final_layer_norm\.': r'\1.norm3.',
        r'^(decoder\.layers\.\d+)\.encoder_attn\.': r'\1.cross_attn.',
        r'^(decoder\.layers\.\d+\.self_attn)\.o_proj\.': r'\1.out_proj.',
        r'^((?:en|de)coder\.layers\.\d+)\.(?:mlp\.)?fc([12])\.': r'\1.linear\2.',
    },
}
TO_OFFICIAL = {
    r'^encoder\.level_embed$': 'transformer.level_embed',
    r'^(encoder|decoder)\.layers\.': r'transformer.\1.layers.',
    rf'^decoder\.({STARTS})\.': r'transformer.\1.',
    r'^decoder\.query_embed\.': 'query_embed.',
    r'^bbox_head\.cls_branches\.': 'class_embed.',
    r'^bbox_head\.reg_branches\.(\d+)\.': r'bbox_embed.\1.layers.',
    r'^backbone\.': 'backbone.0.body.',
}
DEFORMABLE = 'sampling_offsets|attention_weights|value_proj|output_proj'
LEAF = r'\.(?:weight|bias)'
# Every name of ours, but for what backbones and necks call their own.
NAMES = re.compile(
    r'(?:backbone|neck)\..+'
    r'|encoder\.level_embed'
    rf'|encoder\.layers\.\d+\.(?:self_attn\.(?:{DEFORMABLE})'
    rf'|linear[12]|norm[12]){LEAF}'
    rf'|decoder\.layers\.\d+\.(?:cross_attn\.(?:{DEFORMABLE})'
    rf'|self_attn\.out_proj|linear[12]|norm[123]){LEAF}'
    r'|decoder\.layers\.\d+\.self_attn\.in_proj_(?:weight|bias)'
    rf'|decoder\.(?:{STARTS}){LEAF}'
    r'|decoder\.query_embed\.weight'
    rf'|bbox_head\.(?:cls_branches\.\d+|reg_branches\.\d+\.\d+){LEAF}'
)
CHANNEL_MAPPER = re.compile(
    r'neck\.(convs|extra_convs)\.(\d+)\.(conv|gn)\.(weight|bias)'
)
TWO_STAGE = 'decoder.enc_output.weight'
NECK_BIAS = re.compile(r'neck\.(?:convs|extra_convs)\.\d+\.conv\.bias$')


def layout_of(state_dict: Mapping[str, Tensor]) -> str:
    """Return the layout: 'official', 'mmdet', 'huggingface' or 'mmattn'.

    Raises:
        ValueError: it is none of them.
    """
    return layouts.layout_of(state_dict, MARKERS, 'Deformable DETR')


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of any layout to the names of our detector.

    Heads that all layers share appear once for each layer, as in our detector. If a
    file has only the first one, the others are the same tensor.

    Raises:
        ValueError: the layout or a name is unknown, or two names of the same weight
            have different values.
    """
    layout = layout_of(state_dict)
    if layout == 'mmattn':
        _check_names(state_dict, {name: name for name in state_dict}, layout)
        return dict(state_dict)
    converted, sources = {}, {}
    for source, value in state_dict.items():
        name = _renamed(source, REPLACEMENTS[layout])
        if name in converted and not torch.equal(value, converted[name]):
            raise UserError(
                f'{source} and {sources[name]} are the same weight, but their values '
                'differ'
            )
        converted[name], sources[name] = value, source
    if layout == 'huggingface':
        converted = dict(_joined_projections(converted))
    if layout != 'mmdet':
        converted = dict(_heads_and_neck(converted))
    _check_names(converted, sources, layout)
    return converted


def to_official_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights of any layout to the official code's names.

    With refinement, the official code has a second name for the branches of boxes, and
    with two stages also for the branches of classes. Convolutions of a neck without
    biases get zeros. Counters of batch norms are dropped.

    Raises:
        ValueError: see `convert_state_dict`; or the neck is no `ChannelMapper`.
    """
    weights = with_neck_biases(convert_state_dict(state_dict))
    twice = ('bbox_embed.',) if refines_boxes(weights) else ()
    if TWO_STAGE in weights:
        twice += ('class_embed.',)
    levels = len(_indices(r'neck\.convs\.(\d+)\.', weights))
    official = {}
    for name, value in weights.items():
        if name.endswith('.num_batches_tracked'):
            continue
        if name.startswith('neck.'):
            name = _input_projection(name, levels)
        name = _renamed(name, TO_OFFICIAL)
        if name.startswith('bbox_embed.'):
            name = re.sub(r'\d+(?=\.\w+$)', lambda i: str(int(i[0]) // 2), name)
        official[name] = value
        if name.startswith(twice):
            official[f'transformer.decoder.{name}'] = value
    return official


def refines_boxes(weights: Mapping[str, Tensor]) -> bool:
    """Return whether a detector with refinement, or of two stages, has these weights.

    The branches of its layers differ. Even a new detector's with refinement and one
    stage differ in their biases.
    """
    return TWO_STAGE in weights or any(
        not torch.equal(value, weights[re.sub(r'branches\.\d+', 'branches.0', name)])
        for name, value in weights.items()
        if name.startswith('bbox_head.')
    )


def with_neck_biases(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add zeros where the neck's convolutions have no biases.

    mmdet's neck has none before its norms; the function of the network is the same.
    """
    biases = {}
    for name, value in weights.items():
        bias = name.removesuffix('weight') + 'bias'
        if NECK_BIAS.match(bias) and bias not in weights:
            biases[bias] = value.new_zeros(len(value))
    return {**weights, **biases}


@load_hook
def convert_any_layout(
    module: nn.Module, weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Convert weights of another known layout for a detector.

    A neck with biases gets zeros from one without, such as mmdet's own.

    Raises:
        ValueError: see `convert_state_dict`; or the head has another number of classes,
            or only one of decoder and weights refines boxes.
    """
    if layouts.find_layout(weights, MARKERS) in (None, 'mmattn'):
        return weights
    converted = convert_state_dict(weights)
    _check_classes(converted, module.bbox_head.cls_out_channels)
    _check_refinement(converted, module.decoder.with_box_refine)
    if any(NECK_BIAS.match(name) for name, _ in module.named_parameters()):
        converted = with_neck_biases(converted)
    return converted


def _check_classes(weights: Mapping[str, Tensor], classes: int):
    bias = weights.get('bbox_head.cls_branches.0.bias')
    if bias is not None and len(bias) != classes:
        raise UserError(
            f'these are the weights of a Deformable DETR of {len(bias)} classes, '
            f'bbox_head has {classes}: set num_classes={len(bias)}, or convert the '
            'file with tools/converters/convert_checkpoint.py (--coco-classes converts '
            '91 category ids to 80 classes) and give the result to load_from, which '
            'leaves out the branches of other classes'
        )


def _check_refinement(weights: Mapping[str, Tensor], with_box_refine: bool):
    several = 'bbox_head.reg_branches.1.0.bias' in weights
    if several and refines_boxes(weights) != with_box_refine:
        raise UserError(
            'these are the weights of a Deformable DETR with '
            f'with_box_refine={not with_box_refine}, the decoder has {with_box_refine}'
        )


def _check_names(
    converted: Mapping[str, Tensor], sources: Mapping[str, str], layout: str
):
    unknown = [sources.get(n, n) for n in converted if not NAMES.fullmatch(n)]
    if unknown:
        raise UserError(
            f'these are no weights of a Deformable DETR in the layout {layout}: '
            f'{unknown[:6]}, {len(unknown)} in all'
        )


def _renamed(name: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        name = re.sub(old, new, name)
    return name


def _joined_projections(
    weights: Mapping[str, Tensor],
) -> Iterator[tuple[str, Tensor]]:
    """Join queries, keys and values to one matrix and one bias."""
    for name, value in weights.items():
        match = re.fullmatch(r'(decoder\..+\.self_attn)\.([qkv])_proj\.(\w+)', name)
        if match is None:
            yield name, value
        elif match[2] == 'q':
            parts = [weights[f'{match[1]}.{part}_proj.{match[3]}'] for part in 'qkv']
            yield f'{match[1]}.in_proj_{match[3]}', torch.cat(parts)


def _heads_and_neck(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Give `class_embed`, `bbox_embed` and `input_proj` mmdet's names."""
    layers = len(_indices(r'decoder\.layers\.(\d+)\.', weights))
    convs = [
        name
        for name, value in weights.items()
        if re.fullmatch(r'input_proj\.\d+\.0\.weight', name) and value.shape[-1] == 1
    ]
    shared = {
        kind: _indices(rf'{kind}\.(\d+)\.', weights) == {0}
        for kind in ('class_embed', 'bbox_embed')
    }
    for name, value in weights.items():
        match name.split('.'):
            case 'input_proj', level, index, leaf:
                level, part = int(level), {'0': 'conv', '1': 'gn'}.get(index, index)
                place = f'convs.{level}'
                if level >= len(convs):
                    place = f'extra_convs.{level - len(convs)}'
                yield f'neck.{place}.{part}.{leaf}', value
            case 'class_embed' as kind, layer, leaf:
                for index in range(layers) if shared[kind] else [layer]:
                    yield f'bbox_head.cls_branches.{index}.{leaf}', value
            case 'bbox_embed' as kind, layer, 'layers', linear, leaf:
                place = 2 * int(linear)  # activations are modules in mmdet's
                for index in range(layers) if shared[kind] else [layer]:
                    yield f'bbox_head.reg_branches.{index}.{place}.{leaf}', value
            case _:
                yield name, value


def _indices(pattern: str, names: Mapping[str, Tensor]) -> set[int]:
    return {int(found[1]) for name in names if (found := re.match(pattern, name))}


def _input_projection(name: str, levels: int) -> str:
    match = CHANNEL_MAPPER.fullmatch(name)
    if match is None:
        raise UserError(
            f'the official code has no weight for {name}: its neck is a ChannelMapper '
            'with group norms'
        )
    kind, index, part, leaf = match.groups()
    level = int(index) + (levels if kind == 'extra_convs' else 0)
    return f'input_proj.{level}.{"0" if part == "conv" else "1"}.{leaf}'
