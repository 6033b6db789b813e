"""What two processes promise: one machine, no GPU, gloo."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fresh import plain_environment

from tools.benchmark.tolerances import assert_close
from tools.datasets import toy

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / 'tools'

CONFIG = """
_base_ = 'mmattn::classification/vit_t16_imhsa_300e_in1k.py'
model = dict(
    backbone=dict(_delete_=True, type='mmattn.IViT', arch='nano', out_indices=3),
    head=dict(in_channels=256),
    train_cfg=None)
load = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64)),
    dict(type='PackInputs')]
train_dataloader = dict(
    batch_size={batch_size}, num_workers=0, persistent_workers=False, pin_memory=False,
    dataset=dict(pipeline=load))
val_dataloader = val_cfg = val_evaluator = None
test_dataloader = test_cfg = test_evaluator = None
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters={iterations})
optim_wrapper = dict(
    _delete_=True,
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
    clip_grad=dict(max_norm=1.0))
param_scheduler = None
auto_scale_lr = dict(enable=False)
randomness = dict(seed=3)
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(interval=1),
    checkpoint=dict(
        interval=1, by_epoch=False, save_best=None, max_keep_ckpts=-1))
"""
ITERATIONS = 12
PATIENCE = 300  # seconds, for what takes a few
linux = pytest.mark.skipif(
    not Path('/proc/self').exists(), reason='finds the processes in /proc'
)


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp('work')
    toy.make_imagenet(folder / 'data/imagenet', num_images=8)
    for name, batch_size, iterations in (('one', 4, 1), ('two', 2, ITERATIONS)):
        config = CONFIG.replace('{batch_size}', str(batch_size))
        config = config.replace('{iterations}', str(iterations))
        (folder / f'{name}.py').write_text(config)
    return folder


class Launch:
    """Processes of torchrun."""

    def __init__(self, folder, name, *command, **variables):
        self.log = folder / f'{name}.log'
        env = plain_environment()
        env |= {'VIRTUAL_ENV': sys.prefix, 'OMP_NUM_THREADS': '1', **variables}
        env['PATH'] = f'{Path(sys.executable).parent}:{env["PATH"]}'
        with open(self.log, 'a') as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=log, stderr=log
            )

    def finish(self, patience=PATIENCE):
        returncode = self.process.wait(patience)
        return returncode, self.log.read_text()


class Run(Launch):
    """Two processes through dist_train.sh."""

    def __init__(self, work, work_dir, *args, **variables):
        self.work_dir = work / work_dir
        script = 'bash', TOOLS / 'dist_train.sh', 'two.py', '2', '--work-dir', work_dir
        super().__init__(work, work_dir, *script, *args, **variables)

    def last_checkpoint(self):
        path = self.work_dir / 'last_checkpoint'
        return path.read_text() if path.exists() else None

    def signal_one_after_a_checkpoint(self, number):
        """Rank 1, once there is a checkpoint that was not there before."""
        before, end = self.last_checkpoint(), time.monotonic() + PATIENCE
        while self.last_checkpoint() == before:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.01)
        own = Path(f'/proc/{self.process.pid}/task/{self.process.pid}/children')
        (worker,) = (
            int(pid)
            for pid in own.read_text().split()
            if 'RANK=1' in Path(f'/proc/{pid}/environ').read_text().split('\0')
        )
        os.kill(worker, number)


def load(path):
    return torch.load(path, weights_only=False)


@pytest.fixture(scope='module')
def killed(work):
    """A run of which one process was killed after the first checkpoint."""
    run = Run(work, 'killed')
    run.signal_one_after_a_checkpoint(signal.SIGKILL)
    returncode, log = run.finish(patience=60)
    assert returncode != 0 and 'Signal 9 (SIGKILL)' in log
    assert log.count('the backend is gloo') == 1 - torch.cuda.is_available()
    return run


@linux
def test_two_processes_have_the_gradients_of_one(
    work, killed, monkeypatch, forget_instances
):
    """The global batch is the same; SGD's momentum after one step is the gradient.

    Augmentation, drop path and mixup are off: their random numbers differ by rank.
    """
    from mmattn.cli import train

    forget_instances()
    monkeypatch.chdir(work)
    monkeypatch.setenv('LOCAL_RANK', '0')
    train.main(['one.py', '--work-dir', 'one'])
    one = load(work / 'one/iter_1.pth')
    two = load(killed.work_dir / 'iter_1.pth')
    gradients, actual = (c['optimizer']['state'] for c in (one, two))
    assert gradients.keys() == actual.keys()
    assert len(gradients) > 100
    for number, state in gradients.items():
        expected = state['momentum_buffer']
        assert_close(f'gradient {number}', expected, actual[number]['momentum_buffer'])
    for name, weight in one['state_dict'].items():
        assert_close(name, weight, two['state_dict'][name])


@linux
@pytest.mark.slow
def test_a_resumed_run_of_two_ends_where_an_uninterrupted_one_does(work, killed):
    """The resumed run is killed once more, which torchrun may mend."""
    straight = Run(work, 'straight')
    returncode, log = straight.finish()
    assert returncode == 0, log[-4000:]
    run = Run(work, 'killed', '--resume', TORCHRUN_ARGS='--max-restarts=1')
    run.signal_one_after_a_checkpoint(signal.SIGKILL)
    returncode, log = run.finish()
    assert returncode == 0 and log.count('resumed after iteration') == 2, log[-4000:]
    last = f'iter_{ITERATIONS}.pth'
    states = [load(run.work_dir / last) for run in (straight, run)]
    for one, other in zip(*(s['state_dict'].values() for s in states), strict=True):
        assert torch.equal(one, other)


@linux
@pytest.mark.slow
def test_a_signal_to_one_process_stops_and_saves_both(work):
    run = Run(work, 'stopped')
    run.signal_one_after_a_checkpoint(signal.SIGTERM)
    returncode, log = run.finish(patience=60)
    assert returncode != 0
    assert log.count('SIGTERM: stopped after iteration') == 1, log[-4000:]
    assert Path(run.last_checkpoint()).name == 'stopped.pth'
    stopped = load(run.work_dir / 'stopped.pth')['meta']['iter']
    assert 1 <= stopped < ITERATIONS
    run = Run(work, 'stopped', '--resume')
    returncode, log = run.finish()
    assert returncode == 0, log[-4000:]
    assert f'resumed after iteration {stopped}' in log


def free_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as server:
        return server.getsockname()[1]


MEET = """
import torch.distributed as dist
dist.init_process_group('gloo')
ranks = [None] * dist.get_world_size()
dist.all_gather_object(ranks, dist.get_rank())
print('met', ranks)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_machines_meet_in_any_order(tmp_path):
    """Both are this one, and run a script that is shorter than a tool."""
    (tmp_path / 'meet.py').write_text(MEET)
    path = os.path.relpath(tmp_path / 'meet.py', TOOLS)
    command = 'bash', '-c', f'source {TOOLS}/launch.sh; run_distributed 1 {path}'
    where = dict(MASTER_ADDR='127.0.0.1', LOCAL_ADDR='127.0.0.1', PORT=str(free_port()))
    second, first = (
        Launch(tmp_path, f'node{rank}', *command, NNODES='2', NODE_RANK=rank, **where)
        for rank in '10'
    )
    for run in (first, second):
        returncode, log = run.finish()
        assert returncode == 0 and 'met [0, 1]' in log, log[-4000:]
