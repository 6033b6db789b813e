"""The config of Mask2Former trains as the authors' code does."""

import pytest

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg'):
    pytest.importorskip(name)

from config_files import load, parameter_groups  # noqa: E402
from torch import nn  # noqa: E402


def test_rates_and_decay_are_the_authors():
    """Norms and embeddings of the head do not decay; the backbone learns at a tenth.

    The level embedding of the pixel decoder is a parameter of its own there, not an
    embedding, and decays.
    """
    cfg = load('mask2former/pvtv2_b2_160k_ade20k')
    model, found = parameter_groups(cfg)
    groups = {key: (group['lr'], group['weight_decay']) for key, group in found.items()}
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
