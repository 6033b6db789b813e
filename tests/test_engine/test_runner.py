"""Our runner has every ability of mmengine's."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip('mmengine')
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from tiny_run import make_runner

from mmattn.config_text import check_values
from mmattn.engine.run_configs import is_recorded


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
        return OptimWrapperDict(
            **{
                name: OptimWrapper(
                    torch.optim.Adam(getattr(model, name).parameters(), lr=0.1),
                    accumulative_counts=count,
                )
                for name, count in self.counts.items()
            }
        )


@pytest.mark.parametrize(
    'counts',
    [dict(one=1, two=1), dict(one=3, two=1), dict(one=1, two=5), dict(one=2, two=3)],
    ids=lambda counts: '-'.join(map(str, counts.values())),
)
def test_several_optimizers_train_and_resume(tmp_path, monkeypatch, counts):
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
            train_cfg=dict(
                type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100
            ),
            model=dict(type='Players'),
            optim_wrapper=dict(constructor='TwoWrappers', accumulative_counts=counts),
            param_scheduler=dict(
                type='ExponentialLR', gamma=0.9, by_epoch=False, end=7
            ),
        )
        runner.train()
        return runner.model.state_dict(), runner.optim_wrapper.state_dict()

    expected = run('straight', 7)
    for stop in (2, 3, 4):
        run(f'stopped{stop}', stop)
        resumed = run(f'stopped{stop}', 7, resume=True)
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
    assert {key: type(value) for key, value in history.items()} == {
        'log': torch.Tensor,
        'count': torch.Tensor,
        'max_length': int,
    }
    longer = dict(type='IterBasedTrainLoop', max_iters=6, val_interval=100)
    runner = make_runner(tmp_path, resume=True, train_cfg=longer)
    runner.train()
    live = runner.message_hub.get_scalar('train/loss')
    assert (
        live.data[0][:4].tolist() == history['log'].tolist() and len(live.data[0]) == 6
    )
    assert live.max_length == history['max_length']
    assert live.statistics('norm') == statistic(live) > 0


TEMPLATE = '{{$QZX:x|y}}'
CODE = {
    'class': (dict(classes=('cell', TEMPLATE)), r'metainfo.classes\[1\] must not'),
    'file name': (dict(ann=f'{TEMPLATE}.json'), r'metainfo.ann must not contain'),
    'key': (dict(colors={TEMPLATE: 1}), 'a key of the config.metainfo.colors must not'),
    'quote': (dict(colors={"a': exit(3), 'b": 1}), 'without single quotes'),
    'backslash': (dict(colors={'a\\': ', exit(3)) #'}), 'backslash at its end'),
}


@pytest.mark.parametrize('metainfo, message', CODE.values(), ids=CODE)
def test_text_that_a_written_config_would_run(tmp_path, metainfo, message):
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


def test_the_config_of_a_run_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
    make_runner(tmp_path / 'run').train()
    (path,) = (tmp_path / 'run').glob('*.py')
    assert is_recorded(path)
    path.write_text(path.read_text() + '# edited')
    assert not is_recorded(path)


def test_a_run_does_without_a_record(tmp_path, monkeypatch):
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'file'))
    runner = make_runner(tmp_path / 'run')
    runner.train()
    (path,) = (tmp_path / 'run').glob('*.py')
    assert not is_recorded(path)
    assert (
        'is not recorded as the config of a run'
        in next((tmp_path / 'run').glob(f'{runner.timestamp}/*.log')).read_text()
    )
