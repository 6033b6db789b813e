"""Backbones make no float64 tensor of float32 images: Apple's GPUs have none."""

import pytest
import torch
from backbones import build, every_backbone, image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmattn.ops import circular_kernel_spectrum
from mmattn.ops.common.operator import OPERATORS
from mmattn.ops.structure_aware_attention.spectrum import RESIZES

DOUBLE = torch.float64, torch.complex128


class NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x.dtype for x in tree_leaves(out) if torch.is_tensor(x)]
        assert not set(made) & set(DOUBLE), f'{func} makes {made}'
        return out


def watched(function):
    """Watch inside of an operator, which a mode outside sees as one call."""

    def run(*args, **kwargs):
        with NoFloat64():
            return function(*args, **kwargs)

    return run


@pytest.mark.parametrize('backend', ['torch', 'reference'])
@every_backbone
def test_no_forward_or_backward_makes_float64(cls, backend, monkeypatch):
    monkeypatch.setenv('MMATTN_BACKEND', backend)
    for module in {operator.backends['torch'] for operator in OPERATORS.values()}:
        for name in ('forward', 'backward'):
            monkeypatch.setattr(module, name, watched(getattr(module, name)))
    model = build(cls)
    with NoFloat64():  # at another size than the one that parameters are for
        sum(x.sum() for x in model(image(1, 3, 40, 56))).backward()


@pytest.mark.parametrize('resize', RESIZES)
def test_no_resizing_of_kernels_makes_float64(resize):
    with NoFloat64():
        circular_kernel_spectrum(image(2, 7, 6), (9, 8), resize=resize)
