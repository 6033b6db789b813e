"""Check that `with_cp` of backbones and Deformable DETR computes activations anew."""

import pytest
import torch
from deformable_detr_models import build_decoder, build_encoder, maps
from test_backbones import every_backbone, image, shallow_arch

from mmattn.models import MaskedCaiT


def counted(modules):
    """Count how often each of the modules is called from now on."""
    runs = dict.fromkeys(modules, 0)
    for module in runs:
        # Not a hook after it: the second run ends with the last activation it needs.
        module.register_forward_pre_hook(
            lambda module, args: runs.update({module: runs[module] + 1})
        )
    return runs


def runs_of_blocks(cls, with_cp, **kwargs):
    """Count how often a forward and its backward call each block."""
    torch.manual_seed(0)
    model = cls(arch=shallow_arch(cls), with_cp=with_cp, **kwargs)
    runs = counted(m for m in model.modules() if 'Block' in type(m).__name__)
    sum(out.square().sum() for out in model(image(1, 3, 32, 32))).backward()
    return list(runs.values())


@every_backbone
@pytest.mark.parametrize('with_cp, expected', [(False, 1), (True, 2)], ids=str)
def test_each_block_runs_again_in_the_backward(cls, with_cp, expected):
    runs = runs_of_blocks(cls, with_cp)
    assert runs and set(runs) == {expected}


def test_class_attention_runs_again_in_the_backward():
    assert runs_of_blocks(MaskedCaiT, True, out_type='cls_token') == [2] * 4


@pytest.mark.parametrize('build', [build_encoder, build_decoder])
@pytest.mark.parametrize('with_cp, expected', [(False, 1), (True, 2)], ids=str)
def test_layers_of_deformable_detr_run_again(build, with_cp, expected):
    model = build(with_cp=with_cp)
    runs = counted(model.layers)
    sum(out.square().sum() for out in model(maps())[:1]).backward()
    assert runs and set(runs.values()) == {expected}
