"""Every registered backbone, small; a new one is tested the day it appears."""

from functools import partial

import pytest
import torch
from layer_checks import randn

from mmattn.models import LiSANet, MaiT, ViT
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.registry import MODELS

SINGLE = dict(rtol=1e-5, atol=1e-6)  # where a part computes in float32


class PlainLiSANet(LiSANet):
    """LiSANet of one stage, whose branches are others, with kernels in frequency."""

    arch_zoo = {'isotropic': LiSANet.arch_zoo['isotropic']}

    def __init__(self, arch='isotropic', **kwargs):
        kernels = dict(kernel_resize='gfnet', kernel_domain='frequency')
        super().__init__(arch, **(kernels | kwargs))


class DistilledMaiT(MaiT):
    """MaiT with all that its default has not."""

    arch_zoo = {'xtiny': MaiT.arch_zoo['xtiny']}

    def __init__(self, arch='xtiny', **kwargs):
        super().__init__(
            arch,
            masking='soft',
            distilled=True,
            layer_scale=0.1,
            drop_path_schedule='constant',
            **kwargs,
        )


class MaskedViT(ViT):
    arch_zoo = {'tiny': ViT.arch_zoo['tiny']}

    def __init__(self, arch='tiny', **kwargs):
        super().__init__(arch, 'masked', **kwargs)


BACKBONES = sorted(
    (c for c in MODELS.module_dict.values() if issubclass(c, BaseBackbone)),
    key=lambda cls: cls.__name__,
)
VARIANTS = PlainLiSANet, DistilledMaiT, MaskedViT
BACKBONES += VARIANTS


def fast_for(*fast):
    """Parametrize over the backbones, of which all but those given are slow."""
    marks = {cls: () if cls in fast else pytest.mark.slow for cls in BACKBONES}
    return pytest.mark.parametrize(
        'cls', [pytest.param(c, id=c.__name__, marks=marks[c]) for c in BACKBONES]
    )


every_backbone = fast_for(*(cls for cls in BACKBONES if cls not in VARIANTS))


def shallow_arch(cls, name=None, depths=1):
    """A preset, by default the first, with `depths` blocks a stage, or twice in all."""
    arch = cls.arch_zoo[name or next(iter(cls.arch_zoo))]
    count = len(arch.get('depths', ()))
    shallow = dict(
        depths=(depths,) * count if count > 1 else (2 * depths,), depth=2 * depths
    )
    return {key: shallow.get(key, value) for key, value in arch.items()}


def build(cls, **kwargs):
    torch.manual_seed(0)
    return cls(**{'arch': shallow_arch(cls), **kwargs})


def all_indices(cls, name=None):
    """Every value that `out_indices` of a shallow preset can have with one index."""
    arch = shallow_arch(cls, name)
    depths = arch.get('depths', (arch.get('depth'),))
    return range(len(depths) if len(depths) > 1 else depths[0])


image = partial(randn, dtype=torch.float32)


def maps_and_gradients(model, x):
    """Return maps and gradients of their random projection.

    Norms would make a sum of squares constant.
    """
    outs = model(x)
    sum((out * image(*out.shape)).sum() for out in outs).backward()
    return outs, {name: p.grad for name, p in model.named_parameters()}


def gradients(model, x):
    return maps_and_gradients(model, x)[1]


def counted(modules):
    """Count how often each of the modules is called from now on."""
    runs = dict.fromkeys(modules, 0)
    for module in runs:
        # Not a hook after it: the second run ends with the last activation it needs.
        module.register_forward_pre_hook(
            lambda module, args: runs.update({module: runs[module] + 1})
        )
    return runs


def counting_backend():
    """Return a compiler that runs graphs as they are, and the list of them."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return backend, graphs
