"""Check that `with_cp` of every backbone computes each block's activations anew."""

import pytest
import torch
from test_backbones import every_backbone, image, shallow_arch

from mmattn.models import MaskedCaiT


def runs_of_blocks(cls, with_cp, **kwargs):
    """Count how often a forward and its backward call each block."""
    torch.manual_seed(0)
    model = cls(arch=shallow_arch(cls), with_cp=with_cp, **kwargs)
    runs = {module: 0 for module in model.modules() if 'Block' in type(module).__name__}
    for block in runs:
        # Not a hook after it: the second run ends with the last activation it needs.
        block.register_forward_pre_hook(
            lambda block, args: runs.update({block: runs[block] + 1})
        )
    sum(out.square().sum() for out in model(image(1, 3, 32, 32))).backward()
    return list(runs.values())


@every_backbone
@pytest.mark.parametrize('with_cp, expected', [(False, 1), (True, 2)], ids=str)
def test_each_block_runs_again_in_the_backward(cls, with_cp, expected):
    runs = runs_of_blocks(cls, with_cp)
    assert runs and set(runs) == {expected}


def test_class_attention_runs_again_in_the_backward():
    assert runs_of_blocks(MaskedCaiT, True, out_type='cls_token') == [2] * 4
