"""Small encoders and decoders, filled by the hash, and their official names."""

import torch
from golden import hashed, hashed_parameters
from torch import nn

from mmattn.models.layers import DeformableDETRDecoder, DeformableDETREncoder

SHAPES = (5, 7), (3, 4), (2, 2)
VALID = (4, 5), (2, 3), (1, 2)  # of the second image
CHANNELS, HEADS, QUERIES = 8, 2, 4
SMALL = dict(
    embed_dims=CHANNELS,
    num_layers=2,
    num_heads=HEADS,
    num_levels=len(SHAPES),
    num_points=2,
    feedforward_channels=12,
)
# Settings of the decoder, and how many branches predict.
KINDS = {
    'one-stage': {},
    'refine': dict(with_box_refine=True),
    'two-stage': dict(with_box_refine=True, as_two_stage=True),
}


def build_encoder(**kwargs):
    encoder = DeformableDETREncoder(**SMALL | kwargs).double().eval()
    return fill(encoder, 'encoder')


def build_decoder(kind='one-stage', **kwargs):
    kwargs = SMALL | dict(num_queries=QUERIES) | KINDS[kind] | kwargs
    decoder = DeformableDETRDecoder(**kwargs).double().eval()
    return fill(decoder, 'decoder')


def build_branches(kind='one-stage', num_classes=3):
    """Branches for classes and boxes, of one layer each."""
    count = SMALL['num_layers'] + (kind == 'two-stage')
    branches = []
    for part, width in (('class_embed', num_classes), ('bbox_embed', 4)):
        layers = nn.ModuleList(nn.Linear(CHANNELS, width) for _ in range(count))
        branches.append(fill(layers.double(), part))
    return branches


def fill(module, part):
    names = {own: official_name(part, own) for own in module.state_dict()}
    like = {names[own]: value for own, value in module.state_dict().items()}
    values = hashed_parameters(like)
    module.load_state_dict({own: values[name] for own, name in names.items()})
    return module


def official_name(part, name):
    """In the official transformer; the heads' branches get their part's name, too."""
    is_layer = name.startswith('layers.') or part.endswith('_embed')
    return f'{part}.{name}' if is_layer else name


def maps(shapes=SHAPES, B=2, C=CHANNELS):
    return [hashed(f'src{level}', (B, C, H, W)) for level, (H, W) in enumerate(shapes)]


def padding_masks(shapes=SHAPES, valid=VALID):
    """The first image fills the maps; of the second one `valid` is no padding."""
    masks = []
    for (H, W), (rows, columns) in zip(shapes, valid, strict=True):
        mask = torch.zeros(2, H, W, dtype=torch.bool)
        mask[1, rows:] = True
        mask[1, :, columns:] = True
        masks.append(mask)
    return masks


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}
