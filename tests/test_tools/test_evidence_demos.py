"""tools/evidence/demos.py: a shorter schedule ends where the training ends."""

import pytest

pytest.importorskip('mmengine')

from tools.evidence.claim import Variant
from tools.evidence.demos import demo_variant

CONFIG = 'configs/demo/deformable_detr_ivit_n_hela.py'


def test_a_shorter_schedule_has_the_same_warmup_and_ends_at_its_minimum():
    variant = demo_variant(CONFIG, 50, {'model.decoder.num_layers': 2})
    warmup, cosine = variant.resolved.param_scheduler
    original = Variant(CONFIG).resolved.param_scheduler
    assert warmup == original[0]
    assert cosine.begin == original[1].begin == warmup.end
    assert cosine.end == cosine.begin + cosine.T_max == 50 == variant.iterations
    assert variant.resolved.train_cfg.val_interval == 50
    assert 50 % variant.resolved.default_hooks.checkpoint.interval <= 2
    assert variant.resolved.model.decoder.num_layers == 2
