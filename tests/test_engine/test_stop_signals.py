"""A run that a signal stops is saved, and goes on as if it had not been stopped."""

import multiprocessing
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch
from mmengine.hooks import Hook
from test_resume import (
    EVERY_4,
    FIVE,
    ITER_LOOP,
    assert_bitwise_equal,
    final_state,
    make_runner,
    train_with_stops,
)
from test_resume import registered as registered
from torch.utils.data import DataLoader, Dataset

from mmattn.engine import stop_signals
from mmattn.engine.stop_signals import sigterm_is_handled, start_worker

STATUS = {signal.SIGINT: None, signal.SIGTERM: 143}


class Signal(Hook):
    """Signals its own process, `times` times, in the middle of a step."""

    def __init__(self, number, iteration, moment='train', times=1, wait=0.0):
        self.number, self.iteration, self.moment = number, iteration, moment
        self.times, self.wait = times, wait

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.send('train', runner.iter + 1)

    def before_val_iter(self, runner, batch_idx, data_batch=None):
        if batch_idx == 1:
            self.send('val', runner.iter)

    def send(self, moment, iteration):
        if (moment, iteration) == (self.moment, self.iteration):
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
                time.sleep(self.wait)


def stopped(work_dir, number, iteration, moment='train', **options):
    """Trains until the signal; returns the runner."""
    hooks = [*options.pop('hooks', ()), Signal(number, iteration, moment)]
    runner = make_runner(work_dir, hooks=hooks, **options)
    expected = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(expected) as caught:
        runner.train()
    assert getattr(caught.value, 'code', None) == STATUS[number]
    vars(runner.train_loop).pop('dataloader_iterator', None)
    return runner


def checkpoints(folder):
    return sorted(path.name for path in folder.glob('*.pth'))


ITERATIONS = dict(loop=ITER_LOOP, sampler='InfiniteSampler', checkpoint=EVERY_4)
# Iteration and moment of the signal, options of the run, and the signal.
CASES = {
    'before-the-first-save': (3, 'train', {}, signal.SIGINT),
    'inside-an-epoch': (10, 'train', {}, signal.SIGTERM),
    'last-of-an-epoch': (12, 'train', {}, signal.SIGTERM),
    'iteration-of-a-save': (8, 'train', ITERATIONS, signal.SIGTERM),
    'validation': (12, 'val', dict(hooks=[dict(type='EMAHook')]), signal.SIGINT),
    'validation-of-iterations': (10, 'val', ITERATIONS, signal.SIGTERM),
    'accumulation': (8, 'train', dict(optim_wrapper=FIVE), signal.SIGTERM),
}


@pytest.mark.parametrize('case', CASES)
def test_what_is_stopped_and_resumed_ends_alike(tmp_path, case):
    iteration, moment, options, number = CASES[case]
    before = [signal.getsignal(number) for number in STATUS]
    straight, _ = train_with_stops(tmp_path / 'a', [], **options)
    stopped(tmp_path / 'b', number, iteration, moment, **options)
    named = (tmp_path / 'b' / 'last_checkpoint').read_text()
    assert named == str(tmp_path / 'b' / 'stopped.pth')
    assert torch.load(named, weights_only=False)['meta']['iter'] == iteration
    assert [signal.getsignal(number) for number in STATUS] == before
    runner = make_runner(tmp_path / 'b', resume=True, **options)
    runner.train()
    assert_bitwise_equal(final_state(runner), straight)
    assert checkpoints(tmp_path / 'b') == checkpoints(tmp_path / 'a')
    for name in checkpoints(tmp_path / 'a'):
        saved = [torch.load(tmp_path / run / name, weights_only=False) for run in 'ab']
        for key in ('state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict'):
            assert_bitwise_equal(saved[1].get(key), saved[0].get(key))


@pytest.mark.parametrize('accumulative_counts', [1, 5])
def test_ranks_stop_together_where_no_gradient_is_lost(
    tmp_path, monkeypatch, accumulative_counts
):
    wrapper = FIVE | dict(accumulative_counts=accumulative_counts)
    runner = make_runner(tmp_path, optim_wrapper=wrapper)

    def another_rank_was_signaled(wish, op):
        assert op == 'max'
        if runner.iter + 1 >= 3:
            wish.fill_(signal.SIGTERM)

    monkeypatch.setattr(stop_signals, 'all_reduce', another_rank_was_signaled)
    runner._distributed = True
    with pytest.raises(SystemExit):
        runner.train()
    saved = torch.load(tmp_path / 'stopped.pth', weights_only=False)
    assert saved['meta']['iter'] == max(3, accumulative_counts)
    assert 'gradients' not in saved


def test_a_burst_is_one_signal_and_a_second_one_stops_at_once(tmp_path, monkeypatch):
    runner = make_runner(tmp_path / 'a', hooks=[Signal(signal.SIGTERM, 3, times=3)])
    with pytest.raises(SystemExit):
        runner.train()
    assert runner.iter + 1 == 3
    monkeypatch.setattr(stop_signals, 'BURST', 0.0)
    twice = Signal(signal.SIGINT, 3, times=2, wait=0.01)
    with pytest.raises(KeyboardInterrupt):
        make_runner(tmp_path / 'b', hooks=[twice]).train()
    assert not checkpoints(tmp_path / 'b')


def test_other_handlers_stay(tmp_path):
    came = []
    previous = signal.signal(signal.SIGTERM, lambda *_: came.append('theirs'))
    try:
        make_runner(tmp_path, hooks=[Signal(signal.SIGTERM, 3)]).train()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert came == ['theirs']


def test_without_a_checkpoint_hook_a_signal_does_what_it_does(tmp_path):
    hook = dict(checkpoint=None, logger=dict(type='LoggerHook', interval=100))
    runner = make_runner(tmp_path, default_hooks=hook, hooks=[Signal(signal.SIGINT, 3)])
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    assert runner.iter == 2
    assert not checkpoints(tmp_path)


def test_outside_the_main_thread_nothing_is_installed(tmp_path):
    before = [signal.getsignal(number) for number in STATUS]
    seen = []

    class Look(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            seen.append([signal.getsignal(number) for number in STATUS])

    runner = make_runner(tmp_path, hooks=[Look()], loop=dict(ITER_LOOP, max_iters=2))
    thread = threading.Thread(target=runner.train)
    thread.start()
    thread.join()
    assert seen == [before] * 2


class Pids(Dataset):
    """More than a pipe holds, so that a worker waits until somebody reads."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return os.getpid(), bytes(2**20)


def started(worker_id):
    assert worker_id == 0


def load():
    init = partial(start_worker, init=started, handled=sigterm_is_handled())
    options = dict(num_workers=1, multiprocessing_context='fork')
    return iter(DataLoader(Pids(), batch_size=None, worker_init_fn=init, **options))


@pytest.fixture
def handled():
    sigterm_is_handled().fill_(1)
    yield
    sigterm_is_handled().fill_(0)


def run_until_killed(pipe):
    pipe.send(next(load())[0])
    time.sleep(300)


def test_workers_end_when_the_main_process_is_killed(handled):
    context = multiprocessing.get_context('fork')
    here, there = context.Pipe()
    process = context.Process(target=run_until_killed, args=(there,))
    process.start()
    there.close()
    worker = here.recv()
    process.kill()
    process.join()
    if not here.poll(20):  # it ends when no process holds its other end
        os.kill(worker, signal.SIGKILL)
        pytest.fail('the worker lives on')


def test_workers_outlive_what_stops_a_run_and_end_with_the_main_process(handled):
    batches = load()
    pid, _ = next(batches)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        os.kill(pid, number)
    for _ in range(10):
        assert next(batches)[0] == pid
    (worker,) = batches._workers
    sigterm_is_handled().fill_(0)
    worker.terminate()  # as multiprocessing does at the exit
    worker.join(30)
    assert worker.exitcode == 0
