"""A loss or weight that is infinite or NaN ends a run and is never saved."""

import math

import pytest
import torch

pytest.importorskip('mmengine')
from mmengine.registry import MODELS
from tiny_run import Tiny, make_runner

from mmattn.engine import read_checkpoint

AMP = dict(type='mmattn.AmpOptimWrapper', dtype='float16')


class Breaking(Tiny):
    """Break the loss, or only its gradients, of one iteration."""

    calls = 0

    def __init__(self, loss=1.0, broken=3, **kwargs):
        super().__init__(**kwargs)
        self.factor, self.broken = loss, broken

    def forward(self, *points, mode='tensor'):
        out = super().forward(*points, mode=mode)
        if mode == 'loss':
            self.calls += 1
            if self.calls == self.broken:
                out['loss'] = out['loss'] * self.factor
                weight = self.head.weight
                # Its gradient is 0 / 0 for a part of the weight.
                out['loss_aux'] = (weight[..., :1] * 0).sum().sqrt()
        return out


def run(work_dir, loss, **options):
    MODELS.module_dict['Breaking'] = Breaking
    return make_runner(work_dir, model=dict(type='Breaking', loss=loss), **options)


@pytest.mark.parametrize(
    ('loss', 'message'),
    [
        (math.nan, 'iteration 3: loss is nan. .*clip .* resume from .*iter_2.pth'),
        (math.inf, 'iteration 3: loss is inf. .*resume from .*iter_2.pth'),
        (1.0, 'weight head.weight is infinite or NaN, .*resume from .*iter_2.pth'),
    ],
    ids=str,
)
def test_the_run_ends_and_keeps_the_last_good_checkpoint(tmp_path, loss, message):
    with pytest.raises(RuntimeError, match=message):
        run(tmp_path, loss).train()
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_2.pth']
    weights = read_checkpoint(tmp_path / 'iter_2.pth')['state_dict']
    assert all(weight.isfinite().all() for weight in weights.values())


def test_it_ends_before_the_first_checkpoint_too(tmp_path):
    checkpoint = dict(type='CheckpointHook', interval=4, by_epoch=False)
    hooks = dict(checkpoint=checkpoint)
    with pytest.raises(RuntimeError, match='loss is nan. There is no checkpoint yet'):
        run(tmp_path, math.nan, default_hooks=hooks).train()


def test_a_step_that_the_loss_scaler_skips_is_reported(tmp_path, caplog):
    optimizer = dict(type='SGD', lr=0.01)
    wrapper = dict(AMP, optimizer=optimizer)
    runner = run(tmp_path, math.nan, optim_wrapper=wrapper)
    runner.logger.addHandler(caplog.handler)
    runner.train()
    assert 'iteration 3: loss is nan. The step is skipped.' in caplog.text
    assert (tmp_path / 'iter_4.pth').exists()
    assert all(torch.isfinite(p).all() for p in runner.model.parameters())
