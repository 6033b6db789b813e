"""The kernels that a forward starts on a GPU, and casts that share one."""

import pytest
import torch

from mmattn.models import DATPlusPlus, IViT, LiSANet
from mmattn.ops.common import precision
from tools.gpu.launches import count_launches

MOST = {  # under autocast in training, and in bfloat16 in inference
    (IViT, 'tiny'): (589, 306),
    (DATPlusPlus, 'tiny'): (909, 659),
    (LiSANet, 'small'): (526, 430),
}


@pytest.mark.parametrize(
    'network, arch',
    [
        pytest.param(*key, marks=pytest.mark.slow if key[0] is not IViT else ())
        for key in MOST
    ],
)
def test_launches_of_backbones(network, arch):
    for autocast, most in zip((True, False), MOST[network, arch], strict=True):
        with torch.device('meta'):
            model = network(arch)
        shape = 2, 3, 224, 224
        counts = count_launches(model, *shape, autocast=autocast, trains=autocast)
        assert counts.total() <= most, counts


def test_autocast_keeps_weights_where_no_gradient_is_needed():
    with torch.device('meta'):
        model = IViT('tiny')
    counts = count_launches(model, 2, 3, 224, 224, autocast=True, trains=False)
    blocks = 12  # each casts its two scales, and no layer its weight
    assert counts['_foreach_copy_'] == blocks and counts.total() <= 576


@pytest.mark.parametrize('frozen', [None, 'x', 'weight', 'bias'])
def test_tensors_cast_together_have_the_gradients_of_single_casts(frozen, monkeypatch):
    monkeypatch.setattr(precision, '_fit_one_kernel', lambda tensors: True)
    shapes = dict(x=(6, 4), weight=(3, 4), bias=(3,))
    given = {
        name: torch.randn(shape).requires_grad_(name != frozen)
        for name, shape in shapes.items()
    }
    given['none'], given['half'] = None, torch.randn(3, dtype=torch.bfloat16)
    together = precision.cast_together(torch.bfloat16, *given.values())
    single = [None if x is None else x.to(torch.bfloat16) for x in given.values()]
    learned = [x for x in given.values() if x is not None and x.requires_grad]
    results = []
    for x, weight, bias, none, half in (together, single):
        assert none is None and half is given['half']
        out = torch.nn.functional.linear(x, weight, bias)
        grads = torch.autograd.grad(out.float().square().sum(), learned)
        results.append([out, *grads])
    for ours, expected in zip(*results, strict=True):
        assert ours.dtype == expected.dtype and torch.equal(ours, expected)
