"""Run, resume and stop as mmengine does, and refuse what it lets pass."""

import math
import multiprocessing
import os
import re
import signal
import socket
import time

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from tiny_run import Tiny, make_runner
from torch import nn

from mmattn.engine import read_checkpoint
from mmattn.engine.work_dir_lock import locked_work_dir
from mmattn.files.config_text import check_values


@pytest.mark.parametrize('trains', [True, False], ids=['trainable', 'val-only'])
def test_validation_alone_saves_nothing(tmp_path, trains):
    hook = dict(type='CheckpointHook', save_best='score', rule='greater')
    options = dict(default_hooks=dict(checkpoint=hook))
    if not trains:
        keys = 'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler'
        options |= dict.fromkeys(keys)
    runner = make_runner(tmp_path, val=True, **options)
    assert runner.val()['score'] > 0
    assert not [*tmp_path.glob('*.pth')]


class Players(BaseModel):
    """Two linear layers that play against each other, each with its optimizer.

    The second is updated twice in an iteration, and its gradients stay where the first
    one's loss has left them.
    """

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 1)
        self.drop = nn.Dropout(0.5)

    def forward(self, points):
        return self.two(self.drop(self.one(points)))

    def train_step(self, data, optim_wrapper):
        points = torch.stack(data)
        losses = {}
        for name in ('one', 'two', 'two'):
            loss = (self(points) - float(name == 'one')).square().mean()
            optim_wrapper[name].update_params(loss)
            losses[f'loss_{name}'] = loss.detach()
        return losses


class TwoWrappers:
    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        self.counts = optim_wrapper_cfg['accumulative_counts']

    def __call__(self, model):
        wrappers = {}
        for name, count in self.counts.items():
            adam = torch.optim.Adam(getattr(model, name).parameters(), lr=0.1)
            wrappers[name] = OptimWrapper(adam, accumulative_counts=count)
        return OptimWrapperDict(**wrappers)


@pytest.mark.parametrize(
    'stop, counts', [(2, dict(one=3, two=1)), (3, dict(one=1, two=5))]
)
def test_several_optimizers_train_and_resume(tmp_path, monkeypatch, stop, counts):
    monkeypatch.setitem(MODELS.module_dict, 'Players', Players)
    constructors = OPTIM_WRAPPER_CONSTRUCTORS.module_dict
    monkeypatch.setitem(constructors, 'TwoWrappers', TwoWrappers)

    def run(folder, max_iters, **options):
        data = [torch.tensor([float(i), 1.0]) for i in range(8)]
        sampler = dict(type='InfiniteSampler', shuffle=True)
        runner = make_runner(
            tmp_path / folder,
            **options,
            train_dataloader=dict(dataset=data, batch_size=2, sampler=sampler),
            max_iters=max_iters,
            model=dict(type='Players'),
            optim_wrapper=dict(constructor='TwoWrappers', accumulative_counts=counts),
            param_scheduler=dict(
                type='ExponentialLR', gamma=0.9, by_epoch=False, end=7
            ),
        )
        runner.train()
        return runner.model.state_dict(), runner.optim_wrapper.state_dict()

    expected = run('straight', 7)
    run('stopped', stop)
    resumed = run('stopped', 7, resume=True)
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


@pytest.fixture
def statistic():
    @HistoryBuffer.register_statistics
    def norm(self, window_size=None):
        return math.sqrt((self._log_history**2).sum())

    yield norm
    del HistoryBuffer._statistics_methods['norm']


def test_checkpoints_hold_plain_data(tmp_path, statistic):
    """PyTorch reads them by itself, and a resumed run has the history of the first."""
    first = make_runner(tmp_path)
    first.train()
    read = torch.load(tmp_path / 'iter_4.pth', weights_only=True)
    history = read['message_hub']['log_scalars']['train/loss']
    kinds = dict(log=torch.Tensor, count=torch.Tensor, max_length=int)
    assert {key: type(value) for key, value in history.items()} == kinds
    runner = make_runner(tmp_path, resume=True, max_iters=6)
    runner.train()
    live = runner.message_hub.get_scalar('train/loss')
    numbers = live.data[0].tolist()
    assert numbers[:4] == history['log'].tolist() and len(numbers) == 6
    assert live.max_length == history['max_length']
    assert live.statistics('norm') == statistic(live) > 0


TEMPLATE = '{{$QZX:x|y}}'
CODE = {
    'class': (dict(classes=('cell', TEMPLATE)), r'metainfo.classes\[1\] must not'),
    'file name': (dict(ann=f'{TEMPLATE}.json'), r'metainfo.ann must not contain'),
    'key': (dict(colors={TEMPLATE: 1}), 'a key of the config.metainfo.colors must not'),
    'quote': (dict(colors={"a': exit(3), 'b": 1}), 'without single quotes'),
    'backslash': (dict(colors={'a\\': ', exit(3)) #'}), 'backslash at its end'),
    'inf': (dict(scales=[(1, -math.inf)]), r'scales\[0\]\[1\] must be.* got -inf'),
}


@pytest.mark.parametrize('metainfo, message', CODE.values(), ids=CODE)
def test_what_a_written_config_cannot_hold(tmp_path, metainfo, message):
    with pytest.raises(ValueError, match=message):
        make_runner(tmp_path, metainfo=metainfo)
    assert not [*tmp_path.rglob('*')]


def test_a_written_config_says_what_was_given(tmp_path):
    """Quotes, backslashes and line breaks survive both parsers."""
    names = ("a'b", 'a\\', 'a\nb', "', exit(3))#", '{ {', '}}')
    given = dict(classes=names, colors={'a.b"c': names[0], r'.*\.bias': names[1]})
    cfg = Config(dict(metainfo=given))
    check_values(cfg)
    cfg.dump(tmp_path / 'config.py')
    assert Config.fromfile(tmp_path / 'config.py').metainfo == given


AMP = dict(type='mmattn.AmpOptimWrapper', dtype='float16')


class Breaking(Tiny):
    """Break the loss, or only its gradients, of one iteration."""

    calls = 0

    def __init__(self, loss=1.0, broken=3, **kwargs):
        super().__init__(**kwargs)
        self.factor, self.broken = float(loss), broken

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
    return make_runner(work_dir, model=dict(type='Breaking', loss=str(loss)), **options)


@pytest.mark.parametrize(
    ('loss', 'interval', 'message'),
    [
        (math.nan, 1, 'iteration 3: loss is nan. .*clip .* resume from .*iter_2.pth'),
        (1.0, 1, 'weight head.weight is infinite or NaN, .*resume from .*iter_2.pth'),
        (math.nan, 4, 'loss is nan. There is no checkpoint yet'),
    ],
    ids=['loss', 'weight', 'before the first'],
)
def test_the_run_ends_and_keeps_the_last_good_checkpoint(
    tmp_path, loss, interval, message
):
    hook = dict(type='CheckpointHook', interval=interval, by_epoch=False)
    hook['max_keep_ckpts'] = 1
    with pytest.raises(ValueError, match=message):
        run(tmp_path, loss, default_hooks=dict(checkpoint=hook)).train()
    saved = [*tmp_path.glob('*.pth')]
    assert [path.name for path in saved] == ['iter_2.pth'] * (interval == 1)
    for path in saved:
        weights = read_checkpoint(path)['state_dict']
        assert all(weight.isfinite().all() for weight in weights.values())


def test_a_step_that_the_loss_scaler_skips_is_reported(tmp_path, caplog):
    optimizer = dict(type='SGD', lr=0.01)
    wrapper = dict(AMP, optimizer=optimizer)
    runner = run(tmp_path, math.nan, optim_wrapper=wrapper)
    runner.logger.addHandler(caplog.handler)
    runner.train()
    assert 'iteration 3: loss is nan. The step is skipped.' in caplog.text
    assert (tmp_path / 'iter_4.pth').exists()
    assert all(torch.isfinite(p).all() for p in runner.model.parameters())


LONE = dict(
    dataset=[torch.ones(2)] * 3,
    batch_size=4,
    drop_last=True,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
)


@pytest.mark.parametrize('by_epoch', [True, False])
@pytest.mark.parametrize('key', ['train_dataloader', 'val_dataloader'])
def test_a_loader_without_a_batch_is_refused(tmp_path, key, by_epoch):
    loop = dict(by_epoch=by_epoch, val_interval=1)
    loop['max_epochs' if by_epoch else 'max_iters'] = 2
    runner = make_runner(tmp_path, val=True, train_cfg=loop, **{key: LONE})
    message = f'{key} has no batch: its data set has 3 samples, fewer than batch_size=4'
    with pytest.raises(ValueError, match=message):
        runner.train()
    assert not [*tmp_path.glob('*.pth')]


def hold(work_dir, pipe):
    with locked_work_dir(work_dir):
        worker = os.fork()  # as a loader's, which outlives a killed run
        if worker:
            pipe.send(worker)
        time.sleep(300)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the work dir, as does a worker of its own."""
    context = multiprocessing.get_context('fork')
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(str(tmp_path), there))
    process.start()
    worker = here.recv()
    yield process
    os.kill(worker, signal.SIGKILL)
    process.kill()
    process.join()


def test_a_held_work_dir_is_refused_until_its_run_is_killed(tmp_path, holder, capfd):
    runner = make_runner(tmp_path)
    place = f'process {holder.pid} on {socket.gethostname()} since 20'
    with pytest.raises(ValueError, match=f'of a training that runs, {place}'):
        runner.train()
    assert not [*tmp_path.glob('*.p*'), *tmp_path.glob('last_checkpoint')]
    holder.kill()
    holder.join()
    runner.train()
    output = ''.join(capfd.readouterr())
    assert f'did not end by itself, {place}' in output
    assert (tmp_path / 'last_checkpoint').is_file()
    make_runner(tmp_path).train()  # the run before has ended by itself
    assert 'did not end by itself' not in ''.join(capfd.readouterr())


def test_a_run_that_fails_frees_its_work_dir(tmp_path, monkeypatch, capfd):
    runner = make_runner(tmp_path)
    monkeypatch.setattr(runner.model, 'train_step', lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.train()
    make_runner(tmp_path).train()
    assert 'did not end by itself' not in ''.join(capfd.readouterr())


@pytest.mark.parametrize('kind', ['link', 'second name', 'pipe', 'folder'])
def test_a_lock_that_is_something_else_is_left_alone(tmp_path, kind):
    lock, precious = tmp_path / 'run/.mmattn-lock', tmp_path / 'precious'
    lock.parent.mkdir()
    precious.write_text('data')
    make = {
        'link': lambda: lock.symlink_to(precious),
        'second name': lambda: lock.hardlink_to(precious),
        'pipe': lambda: os.mkfifo(lock),
        'folder': lock.mkdir,
    }
    make[kind]()
    refused = pytest.raises(ValueError, match='mmattn-lock must be a regular file')
    with refused, locked_work_dir(lock.parent):
        pass
    assert precious.read_text() == 'data'


def test_the_log_file_and_a_console_of_debug_have_everything(tmp_path, capsys):
    """The console has a summary until the run begins, and an estimate later."""
    shown = {}
    for level in ('INFO', 'DEBUG'):
        runner = make_runner(tmp_path / level, max_iters=7, log_level=level)
        runner.train()
        shown[level] = capsys.readouterr().out
        (log,) = (tmp_path / level).glob('*/*.log')
        for part in ('System environment:', 'Config:', 'Hooks will be executed'):
            assert part in log.read_text()
            assert (part in shown[level]) == (level == 'DEBUG')
        assert f'log, with config and environment: {log}' in shown[level]
    assert re.search(r'estimate: 0:00:0\d for 2 iterations of 0\.\d\d s', shown['INFO'])
    assert 'train_dataloader.dataset: 4 images\n' in shown['INFO']
    assert 'Saving checkpoint' in shown['INFO'].partition('work dir: ')[2]
