"""What mmengine's runner can do, ours can."""

import pytest

pytest.importorskip('mmengine')
from tiny_run import make_runner


def validated(work_dir, **options):
    other = make_runner(work_dir / 'other')
    return make_runner(
        work_dir,
        val_dataloader=other._train_dataloader,
        val_cfg=dict(),
        val_evaluator=dict(type='RisingMetric'),
        **options,
    )


@pytest.mark.parametrize(
    'hook', [{}, dict(save_best='score', rule='greater')], ids=['last', 'best']
)
@pytest.mark.parametrize('trains', [True, False], ids=['trainable', 'val-only'])
def test_validation_alone_saves_nothing(tmp_path, hook, trains):
    options = dict(default_hooks=dict(checkpoint=dict(type='CheckpointHook', **hook)))
    if not trains:
        keys = 'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler'
        options |= dict.fromkeys(keys)
    runner = validated(tmp_path, **options)
    assert runner.val()['score'] > 0
    assert not [*tmp_path.glob('*.pth')]
