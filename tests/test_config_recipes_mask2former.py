"""The config of Mask2Former trains as the authors' code does."""

from pathlib import Path

import pytest

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg'):
    pytest.importorskip(name)

import generate_model_zoo as model_zoo  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402
from torch import nn  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402

ROOT = Path(__file__).parents[1]


def test_rates_and_decay_are_the_authors():
    """Norms and embeddings of the head have none, and the backbone a tenth of the rate.

    The level embedding of the pixel decoder is a parameter of its own there, not an
    embedding, and decays.
    """
    cfg = model_zoo.load(ROOT / 'configs/mask2former/pvtv2_b2_160k_ade20k.py')
    init_default_scope(cfg.default_scope)
    model = build(cfg)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    assert wrapper.clip_grad_kwargs['max_norm'] == 0.01
    groups = {
        id(parameter): (group['lr'], group['weight_decay'])
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    spared = set()
    for name, module in model.decode_head.named_modules():
        for own, parameter in module.named_parameters(prefix=name, recurse=False):
            kinds = nn.LayerNorm | nn.GroupNorm | nn.Embedding
            lr, decay = groups.pop(id(parameter))
            assert lr == 1e-4
            assert decay == (0 if isinstance(module, kinds) else 0.05), own
            if isinstance(module, nn.Embedding):
                spared.add(own)
    assert spared == {
        f'{n}.weight' for n in ('query_embed', 'query_feat', 'level_embed')
    }
    for parameter in model.backbone.parameters():
        assert groups.pop(id(parameter)) == pytest.approx((1e-5, 0.05))
    assert not groups
    (schedule,) = cfg.param_scheduler
    assert (schedule.type, schedule.power, schedule.eta_min) == ('PolyLR', 0.9, 0.0)
