"""tools/train.py, killed at random moments and resumed, against an uninterrupted run.

The processes come from a fork server that has imported the mm packages already: each
would take seconds for that.
"""

import multiprocessing
import os
import random
import runpy
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TOOLS = ROOT / 'tools'
TRAINED = {
    'detector': """
_base_ = 'detector.py'
model = dict(backbone=dict(drop_path_rate=0.3))
augment = [
    dict(type='RandomResize', scale=(96, 96), ratio_range=(0.6, 1.4), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
]
train_dataloader = dict(
    batch_size=2, num_workers=2, persistent_workers=True, dataset=dict(pipeline=[
        {{_base_.load}}, {{_base_.annotate}}, *augment, {{_base_.pack}}]))
""",
    'classifier': """
_base_ = 'classifier.py'
model = dict(
    backbone=dict(
        _delete_=True, type='mmattn.IViT', arch='nano', out_indices=3,
        drop_path_rate=0.3),
    head=dict(in_channels=256))
train_dataloader = dict(pin_memory=False, dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=64),
    dict(type='RandomFlip', prob=0.5),
    dict(type='ColorJitter', brightness=0.4, contrast=0.4),
    dict(type='PackInputs')]))
""",
}
EPOCHS = """
train_cfg = dict(max_epochs=4, val_interval=2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=5),
    dict(type='MultiStepLR', by_epoch=True, milestones=[2, 3])]
default_hooks = dict(
    logger=dict(interval=1), checkpoint=dict(interval=1, save_best=None))
"""
ITERATIONS = """
train_cfg = dict(
    _delete_=True, type='IterBasedTrainLoop', max_iters=12, val_interval=5)
train_dataloader['sampler'] = dict(type='InfiniteSampler', shuffle=True)
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=8)]
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(interval=1),
    checkpoint=dict(interval=3, by_epoch=False, save_best=None))
"""
LOOPS = {'detector': ITERATIONS, 'classifier': EPOCHS}
PATIENCE = 300  # seconds, for what takes a few


@pytest.fixture(scope='module')
def server():
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(
        ['mmattn.engine', 'mmdet.models', 'mmdet.datasets', 'mmpretrain.models']
    )
    return context


def _train(folder, args, log):
    os.chdir(folder)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    os.dup2(1, 2)
    torch.set_num_threads(1)
    sys.argv = ['train.py', *args]
    runpy.run_path(str(TOOLS / 'train.py'), run_name='__main__')


class Training:
    """`train.py` in a process of its own."""

    def __init__(self, server, folder, *args, log):
        self.log = folder / log
        self.process = server.Process(target=_train, args=(folder, args, self.log))
        self.process.start()

    def text(self):
        return self.log.read_text() if self.log.exists() else ''

    def wait_until(self, condition):
        """The time when it became true."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.exitcode is None, self.text()[-4000:]
            assert time.monotonic() < end, self.text()[-4000:]
            time.sleep(0.02)
        return time.monotonic()

    def finish(self):
        self.process.join(PATIENCE)
        assert self.process.exitcode == 0, self.text()[-4000:]
        return time.monotonic()

    def kill(self, delay):
        """False where the run was faster."""
        self.process.join(delay)
        self.process.kill()
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize('case', TRAINED)
def test_killed_twice_and_resumed(server, work, case):
    folder, case = work, f'{case}_killed'
    model = case.removesuffix('_killed')
    (folder / f'{case}.py').write_text(TRAINED[model] + LOOPS[model])
    last = 'epoch_4.pth' if model == 'classifier' else 'iter_12.pth'

    def start(work_dir, *args, log):
        options = ('--cfg-options', 'randomness.seed=3')
        return Training(
            server, folder, f'{case}.py', '--work-dir', work_dir, *args, *options,
            log=log,
        )  # fmt: skip

    straight = start(f'{case}_straight', log=f'{case}_straight.log')
    saved = (folder / f'{case}_straight' / 'last_checkpoint').exists
    duration = -straight.wait_until(saved) + straight.finish()

    saved = (folder / f'{case}_killed' / 'last_checkpoint').exists
    for kill in range(2):
        for attempt in range(5):
            run = start(
                f'{case}_killed', '--resume', log=f'{case}_{kill}_{attempt}.log'
            )
            run.wait_until(lambda: saved() and 'will be saved to' in run.text())  # noqa: B023
            delay = random.uniform(0, 0.6 * duration)
            print(f'kill {kill}: {delay:.3f} s of {duration:.3f} s later')
            if run.kill(delay):
                break
            shutil.rmtree(folder / f'{case}_killed')
        else:
            pytest.fail('the runs were never slow enough to be killed')
    assert not (folder / f'{case}_killed' / last).exists()
    end = start(f'{case}_killed', '--resume', log=f'{case}_end.log')
    end.finish()
    assert 'resumed epoch' in end.text()

    assert_equal_runs(folder / f'{case}_straight', folder / f'{case}_killed', last)


def assert_equal_runs(straight, resumed, last):
    """Compares the last checkpoints of two work dirs, bit for bit."""
    expected, resumed = (
        torch.load(work_dir / last, weights_only=False)
        for work_dir in (straight, resumed)
    )
    exactly = dict(rtol=0, atol=0)
    for one, other in (
        (resumed['state_dict'], expected['state_dict']),
        (resumed['optimizer']['state'], expected['optimizer']['state']),
    ):
        torch.testing.assert_close(one, other, **exactly)
    one, other = (run['optimizer']['param_groups'] for run in (resumed, expected))
    assert one == other
    assert resumed['param_schedulers'] == expected['param_schedulers']
