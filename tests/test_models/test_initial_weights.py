"""Check what every parameter of every backbone starts from, in one table.

A row is a pattern of names and the distribution that its authors' code draws from. The
first row that fits a name holds. Errors are measured against the sampling error of as
many numbers as a parameter, and all parameters of a row together, have.
"""

import re
from math import prod, sqrt

import pytest
import torch
from backbones import BACKBONES, DistilledMaiT, MaskedViT, PlainLiSANet, shallow_arch

from mmattn.models import (
    DAT,
    PVT,
    DATPlusPlus,
    HMaiT,
    IViT,
    LiSANet,
    MaiT,
    MaskedCaiT,
    PVTv2,
    ViT,
)

SIGMAS = 6  # of the sampling error; fourth moments of few numbers have long tails
HEADS = 8, 16, 32, 64
NORMAL, UNIFORM, CONSTANT = 'normal', 'uniform', 'constant'
MOMENTS = {  # of unit variance: the fourth and the eighth
    NORMAL: (3, 105),
    UNIFORM: (9 / 5, 9),
}


def normal(std):
    """Return a rule; official codes truncate at 2, which is 100 deviations of 0.02."""
    return lambda name, shapes: (NORMAL, std)


def constant(value):
    return lambda name, shapes: (CONSTANT, value)


def by_shape(function):
    """Return a rule whose deviation is a function of the shape."""
    return lambda name, shapes: (NORMAL, function(shapes[name]))


def pytorchs(name, shapes):
    """Return PyTorch's default: uniform within 1 / sqrt(fan-in), also for biases."""
    weight = shapes[re.sub('bias$', 'weight', name)]
    return UNIFORM, 1 / sqrt(3 * prod(weight[1:]))


def fan_out(name, shapes):
    """Return PVT v2's rule of convolutions of one group, or of linear layers."""
    out, _, *kernel = (*shapes[name], 1, 1)[:4]
    linear = len(shapes[name]) == 2
    return NORMAL, 0.02 if linear else sqrt(2 / (out * prod(kernel)))


NORMS = (
    (r'(.*\.)?(norm\d?|out_norms\.\d+|conv_offset\.1)\.weight', constant(1)),
    (r'(.*\.)?(norm\d?|out_norms\.\d+|conv_offset\.1)\.bias', constant(0)),
)
# DeiT, https://github.com/facebookresearch/deit, `VisionTransformer._init_weights`, and
# timm's MetaFormer: all matrices and embeddings 0.02, all biases 0.
EMBEDDINGS = ((r'(.*\.)?(pos_embed|cls_token|dist_token)', normal(0.02)),)
MATRICES = ((r'.*\.weight', normal(0.02)), (r'.*\.bias', constant(0)))
DEIT = (*NORMS, *EMBEDDINGS, *MATRICES)
DEFAULTS = ((r'.*\.(weight|bias)', pytorchs),)
# StarReLU and ResScale of https://github.com/sail-sg/metaformer.
STAR_RELU = (
    (r'.*\.(act|mlp\.[12])\.scale', constant(1)),
    (r'.*\.(act|mlp\.[12])\.bias', constant(0)),
)
# Ours. Mixtures of heads add noise to the identity, whatever its scale; a stem's bias
# keeps zero-padded pixels from being zeros that a norm divides by.
MIXING = ((r'.*\.w[12](_[qk])?', normal(0.02)),)
ALPHA = (r'.*\.alpha_logit', constant(0))  # a half
STEM_BIAS = ((r'stem\.proj\.bias', normal(0.02)),)
# Ours: what LiSA's kernels make of values and keys is as large as those.
LISA = (
    *STAR_RELU,
    (r'.*\.attn\.(w_a|w_b)', by_shape(lambda s: 1 / sqrt(s[-2] * s[-1]))),
    (r'.*\.attn\.bias', normal(0.02)),
    *STEM_BIAS,
)
TABLE = {
    ViT: (*MIXING, *DEIT),
    MaskedViT: DEIT,
    MaiT: DEIT,
    DistilledMaiT: (
        (r'.*\.ls[12]\.gamma', constant(0.1)),  # the argument that the class gives
        ALPHA,
        *DEIT,
    ),
    # CaiT, https://arxiv.org/abs/2103.17239, Table 1 (1e-5 at 24 layers), and timm's.
    MaskedCaiT: (
        ALPHA,
        (r'.*\.gamma_[12]', constant(1e-5)),
        (r'stem\.proj\.(weight|bias)', pytorchs),
        *DEIT,
    ),
    IViT: ((r'.*\.scale[12]', constant(1)), *MIXING, *STAR_RELU, *STEM_BIAS, *DEIT),
    LiSANet: (*LISA, *DEIT),
    PlainLiSANet: (*LISA, *DEIT),
    # Swin, https://github.com/microsoft/Swin-Transformer: `_init_weights` leaves the
    # convolution of the stem as PyTorch makes it.
    HMaiT: (
        (r'stem\.proj\.(weight|bias)', pytorchs),
        (r'.*\.relative_position_bias_table', normal(0.02)),
        *DEIT,
    ),
    # https://github.com/whai362/PVT, classification/pvt.py: linear layers alone.
    PVT: (
        (r'.*(stem|downsample)\.proj\.(weight|bias)', pytorchs),
        (r'.*\.sr\.(weight|bias)', pytorchs),
        (r'(.*\.)?(pos_embed|cls_token)', normal(0.02)),
        *NORMS,
        *MATRICES,
    ),
    # The same, pvt_v2.py: convolutions from sqrt(2 / fan-out).
    PVTv2: (
        *STEM_BIAS,
        (r'.*\.dwconv\.weight', normal(sqrt(2 / 9))),
        (r'.*\.(proj|sr)\.weight', fan_out),
        *NORMS,
        *MATRICES,
    ),
    # https://github.com/LeapLabTHU/DAT, where nothing but tables is initialized.
    DAT: (
        (r'.*\.(rpe_table|relative_position_bias_table)', normal(0.01)),
        *NORMS,
        *DEFAULTS,
    ),
    DATPlusPlus: (
        (r'.*\.rpe_table', normal(0.01)),
        (r'.*\.rpb', normal(0.02)),
        *NORMS,
        *DEFAULTS,
    ),
}


def build(cls, arch=(), **kwargs):
    torch.manual_seed(0)
    if cls is PlainLiSANet:  # its spectra are no independent numbers
        kwargs.update(kernel_domain='spatial')
    return cls(arch=shallow_arch(cls) | dict(arch), **kwargs)


CASES = {cls.__name__: (cls, {}) for cls in BACKBONES} | {
    'PVT-token': (PVT, dict(out_type='cls_token')),
    'MaskedCaiT-token': (MaskedCaiT, dict(out_type='cls_token', masking='soft')),
    'MaiT-norms': (MaiT, dict(out_indices=(0, 1))),
    'ViT-equation-7': (ViT, dict(interact_expand=1, local_kernel=None, gate=False)),
    'ViT-equation-5': (ViT, dict(attention='mhsa_interaction')),
    'HMaiT-absolute': (HMaiT, dict(position='absolute')),
    'HMaiT-full': (HMaiT, dict(position='full')),
    # More heads have larger tables, whose deviation is known better.
    'DAT-heads': (DAT, dict(arch=dict(num_heads=HEADS))),
    'DATPlusPlus-heads': (DATPlusPlus, dict(arch=dict(num_heads=HEADS))),
    'PVTv2-li': (PVTv2, dict(arch=dict(linear=True))),
    'LiSANet-star-relu': (LiSANet, dict(activation='star_relu', proj_bias=True)),
}


def noise_of(name, param):
    """Return a parameter, or what mixtures of heads add to their identities."""
    if re.fullmatch(r'.*\.w[12](_[qk])?', name) is None:
        return param
    wide = param.t() if '.w2' in name else param  # (copies * M, M)
    copies = wide.shape[0] // wide.shape[1]
    eye = torch.eye(wide.shape[1], dtype=param.dtype).repeat(copies, 1)
    return wide - (eye / copies if '.w2' in name else eye)


def assert_drawn(z, kind, what):
    """Assert that numbers of unit deviation have their distribution's moments."""
    fourth, eighth = MOMENTS[kind]
    for power, expected, variance in (
        (1, 0, 1),
        (2, 1, fourth - 1),
        (4, fourth, eighth - fourth**2),
    ):
        error = ((z**power).mean().item() - expected) / sqrt(variance / z.numel())
        assert abs(error) < SIGMAS, f'{what}: moment {power} is {error:.1f} sigmas off'
    if kind == UNIFORM:
        assert z.abs().max() <= sqrt(3) * (1 + 1e-6), what


@pytest.mark.parametrize('cls, kwargs', CASES.values(), ids=CASES)
def test_parameters_start_as_the_table_says(cls, kwargs):
    model, rows = build(cls, **kwargs), TABLE[cls]
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    drawn = {}
    for name, param in model.named_parameters():
        pattern, rule = next(row for row in rows if re.fullmatch(row[0], name))
        kind, value = rule(name, shapes)
        if kind == CONSTANT:
            assert param.eq(value).all(), name
            continue
        z = noise_of(name, param.detach().double()).flatten() / value
        assert_drawn(z, kind, name)
        drawn.setdefault((pattern, kind), []).append(z)
    assert drawn
    for (pattern, kind), parts in drawn.items():
        assert_drawn(torch.cat(parts), kind, pattern)
