"""DAT and DAT++: the official networks from official weights, and their conversion."""

import pytest
import torch
from dat_official import KERNELS, STRIDES, official_shapes, official_weights
from golden import assert_golden, golden, hashed_input, hashed_parameter
from torch import nn
from torch.testing import assert_close

from mmattn.analysis.flops import build
from mmattn.apis.find import read_config
from mmattn.models import DAT, DATPlusPlus
from mmattn.models.backbones import dat, dat_plus_plus
from mmattn.models.backbones.dat_plus_plus import ResidualConvMlp
from mmattn.models.layers import (
    DeformableAttention,
    NeighborhoodAttention,
    WindowAttention,
)
from mmattn.weights.load import load_weights

ARCHS = {
    DAT: dict(
        embed_dims=(8, 16, 24, 32),
        depths=(2, 2, 4, 2),
        num_heads=(1, 2, 6, 4),
        num_groups=(0, 0, 3, 2),
    ),
    DATPlusPlus: dict(
        embed_dims=(8, 16, 24, 32),
        depths=(2, 1, 3, 2),
        num_heads=(2, 4, 3, 8),
        num_groups=(1, 2, 3, 4),
    ),
}
VERSIONS = {DAT: (1, dat), DATPlusPlus: (2, dat_plus_plus)}
both = pytest.mark.parametrize('cls', ARCHS)


def weights_of(cls, side=64, **kwargs):
    return official_weights(ARCHS[cls], VERSIONS[cls][0], side, **kwargs)


def attentions(model, kind):
    return [m for m in model.modules() if isinstance(m, kind)]


NETWORKS = {
    'DAT classifier, 224 x 224': (DAT, 224, False),
    'DAT++ classifier, 33 x 40, tables of 64': (DATPlusPlus, 64, False),
    'DAT++ detector, 61 x 90, tables of 64': (DATPlusPlus, 64, True),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_maps_and_the_gradient_of_the_image_are_the_official_ones(name):
    """DAT++ reads tables of another size, and maps are smaller than its windows."""
    cls, side, detector = NETWORKS[name]
    record = golden('dat_networks')[name]
    model = cls(ARCHS[cls], img_size=side, out_indices=None if detector else 3)
    report = load_weights(model.double(), weights_of(cls, side, detector=detector))
    assert not (report.missing or report.mismatched or report.resized)
    assert {name.split('.')[0] for name in report.unexpected} <= {'cls_head'}
    x = hashed_input(*record['input_gradient']['shape']).requires_grad_()
    outs = model(x)
    for out, expected in zip(outs, record['outs'], strict=True):
        assert_golden(out, expected)
    sum((y * y.detach().cos()).sum() for y in outs).backward()
    assert_golden(x.grad, record['input_gradient'], 1e-11)


@pytest.mark.parametrize(
    ('config', 'settings'),
    [
        ('dat_t_300e', (DAT.arch_zoo['tiny'], 1, 224, 1000)),
        ('dat_b_384_30e', (DAT.arch_zoo['base'], 1, 384, 1000, False, 12)),
        ('dat_plus_plus_b_384_30e', (DATPlusPlus.arch_zoo['base'], 2, 224, 1000)),
    ],
)
def test_configs_take_whole_official_classifiers(config, settings):
    """The official tables of DAT++ at 384 pixels are those at 224."""
    weights = {
        name: torch.empty(shape, device='meta')
        for name, shape in official_shapes(*settings).items()
    }
    cfg = read_config(f'classification/{config}_in1k')
    report = load_weights(build(cfg, 'meta'), weights)
    assert not (report.missing or report.unexpected or report.mismatched), report


@both
def test_layouts(cls):
    module = VERSIONS[cls][1]
    official = weights_of(cls)
    assert module.layout_of(official) == 'official'
    converted = module.convert_state_dict(official)
    assert module.layout_of(converted) == 'mmattn'
    assert_close(module.convert_state_dict(converted), converted)
    model = nn.ModuleDict({'backbone': cls(ARCHS[cls], img_size=64, out_norm=False)})
    result = model.load_state_dict(
        {f'backbone.{n}': v for n, v in official.items() if not n.startswith('cls_')}
    )
    assert not result.missing_keys and not result.unexpected_keys
    (other,) = set(ARCHS) - {cls}
    with pytest.raises(ValueError, match='not the weights of a DAT'):
        module.layout_of(weights_of(other))
    with pytest.raises(ValueError, match="'conv1.weight'"):
        module.layout_of({'conv1.weight': torch.zeros(1)})


def kinds(model):
    """Return the kind of each attention, of windows with their shift."""
    letters = {DeformableAttention: 'D', NeighborhoodAttention: 'N'}
    return [
        letters.get(type(m)) or f'{m.window_size}+{m.shift}'
        for m in attentions(model, (*letters, WindowAttention))
    ]


def stages(model):
    """Return the settings of deformable attention, without repetitions."""
    names = 'num_groups', 'kernel_size', 'stride', 'version'
    layers = attentions(model, DeformableAttention)
    return [*dict.fromkeys(tuple(getattr(m, n) for n in names) for m in layers)]


def test_blocks():
    """Stages alternate, in any depth; they end with the second of their kinds."""
    with torch.device('meta'):
        tiny, odd = DAT('tiny'), DAT(dict(ARCHS[DAT], depths=(1, 3, 1, 3)))
        plus_plus = DATPlusPlus('tiny')
    assert kinds(tiny) == ['7+0', '7+4'] * 2 + ['7+0', 'D'] * 4
    assert kinds(odd) == ['7+4', '7+4', '7+0', '7+4', 'D', 'D', '7+0', 'D']
    assert kinds(plus_plus) == ['N', 'D'] * (1 + 2 + 9) + ['D', 'D']
    assert stages(tiny) == [(3, 5, 1, 1), (6, 3, 1, 1)]
    rows = zip(
        DATPlusPlus.arch_zoo['tiny']['num_groups'], KERNELS, STRIDES, strict=True
    )
    assert stages(plus_plus) == [(*row, 2) for row in rows]


def test_conv_mlp_is_the_official_one():
    names = {'fc1': 'linear1.0', 'fc2': 'linear2.0', 'dwconv': 'dwc'}
    mlp = ResidualConvMlp(64).double()
    for ours, param in mlp.named_parameters():
        name, leaf = ours.split('.')
        shape = (*param.shape, 1, 1) if param.dim() == 2 else param.shape
        value = hashed_parameter(f'{names[name]}.{leaf}', shape)
        param.data.copy_(value.view_as(param))
    x = hashed_input(2, 64, 14, 14).permute(0, 2, 3, 1)
    record = golden('dat2')['DAT++ conv MLP C=64 map=14']
    assert_golden(mlp(x).permute(0, 3, 1, 2), record)


@both
@pytest.mark.parametrize('blocks', ['DDDD', 'NNNN'])
def test_backend_reaches_the_operator(cls, blocks):
    arch = dict(ARCHS[cls], num_groups=(1, 2, 3, 2))
    with pytest.raises(ValueError, match="'none'"):
        cls(arch, blocks=blocks, backend='none')(torch.zeros(1, 3, 32, 32))
