"""Stochastic depth of every backbone: which branches it drops, and how often."""

import pytest
import torch
from backbones import DistilledMaiT, every_backbone, image, shallow_arch
from layer_checks import randomize
from timm.layers import DropPath as TimmDropPath
from torch.testing import assert_close

from mmattn.models import MaskedCaiT
from mmattn.models.layers import DropPath

# CaiT (https://arxiv.org/abs/2103.17239) drops with one rate in all layers, and so does
# MaiT-S, as Table 8 of https://arxiv.org/abs/2207.03006 notes. All others, DeiT among
# them, grow linearly.
CONSTANT = MaskedCaiT, DistilledMaiT
DROP_PATHS = DropPath, TimmDropPath  # MaskedCaiT has timm's
RATE = 0.6


def build(cls, **kwargs):
    """Build in float64, with random parameters, so that no branch is nearly zero."""
    torch.manual_seed(0)
    return randomize(cls(arch=shallow_arch(cls, depths=2), **kwargs).double(), 0.2)


def dropping_blocks(model):
    """Return the modules that have stochastic depth, from the input upwards."""
    return [
        module
        for module in model.modules()
        if any(isinstance(child, DROP_PATHS) for child in module.children())
    ]


def rates_of(block):
    return {m.drop_prob for m in block.modules() if isinstance(m, DROP_PATHS)}


def residual(block, x):
    """Return what is left of a block when its attention and its MLP are dropped."""
    for name in ('position', 'lpu'):  # of LiSANet and DAT++, which are never dropped
        if getattr(block, name, None) is not None:
            x = getattr(block, name)(x)
    for name in ('scale1', 'scale2'):  # of IViT
        if getattr(block, name, None) is not None:
            x = x * getattr(block, name)
    return x


@every_backbone
def test_rates_grow_linearly_over_the_whole_network(cls):
    """Blocks keep the rates of the whole network where the last ones are not built."""
    model = build(cls, drop_path_rate=RATE)
    whole = dropping_blocks(model)
    count = len(whole)
    assert count >= 4
    first = dropping_blocks(build(cls, drop_path_rate=RATE, out_indices=0))
    assert len(first) == (2 if hasattr(model, 'stages') else 1)
    for blocks in (whole, first):
        for index, block in enumerate(blocks):
            rate = RATE if cls in CONSTANT else RATE * index / (count - 1)
            assert list(rates_of(block)) == pytest.approx([rate])


@every_backbone
def test_a_dropped_block_is_its_residual_path(cls):
    model = build(cls, drop_path_rate=0.5).train()
    blocks = dropping_blocks(model)
    seen = {}
    for block in blocks:
        for module in block.modules():
            if isinstance(module, DROP_PATHS):
                module.drop_prob = 1.0
        block.register_forward_hook(
            lambda block, args, out: seen.update({block: (args[0], out)})
        )
    model(image(2, 3, 32, 48, dtype=torch.float64))
    assert set(seen) == set(blocks)
    for block, (x, out) in seen.items():
        assert_close(out, residual(block, x), rtol=0, atol=1e-13)
    model.eval()(image(2, 3, 32, 48, dtype=torch.float64))
    for block, (x, out) in seen.items():
        assert (out - residual(block, x)).abs().max() > 1e-6, 'dropped in eval mode'


@every_backbone
def test_images_are_dropped_alone_and_survivors_scaled_up(cls):
    """A surviving branch is divided by the part of the images that keep it."""
    model = build(cls, drop_path_rate=0.5).train()
    seen = []
    for module in model.modules():
        if isinstance(module, DROP_PATHS):
            module.drop_prob = 0.5
            module.register_forward_hook(lambda m, args, out: seen.append((*args, out)))
    torch.manual_seed(0)
    model(image(16, 3, 32, 32, dtype=torch.float64))
    assert len(seen) == 2 * len(dropping_blocks(model))
    kept = [out.flatten(1).abs().amax(1) > 0 for _, out in seen]
    assert 0.3 < torch.cat(kept).double().mean() < 0.7
    for (x, out), images in zip(seen, kept, strict=True):
        assert_close(out[images], 2 * x[images])
