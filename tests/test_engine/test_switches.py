"""The lines of the table of switches in docs/training.md, on a tiny run; the bar."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from tiny_run import make_runner

from mmattn.engine.progress import ProgressHook

PAGE = Path(__file__).parents[2] / 'docs/training.md'
LINES = re.findall(
    r'^\| (.*?) \| `(.*)` \|$', PAGE.read_text().split('## Switches of a run')[1], re.M
)
LINES = {what.split(' (')[0]: line for what, line in LINES[:9]}


def run(tmp_path, what, **changes):
    """Train the tiny run with the line of the table, and return its runner."""
    options = Config(dict(optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-6))))
    options.merge_from_dict(Config.fromstring(LINES[what], '.py').to_dict())
    options.merge_from_dict(changes)
    runner = make_runner(tmp_path, **options.to_dict())
    runner.train()
    return runner


def test_weights_are_averaged(tmp_path):
    run(tmp_path, 'averaged weights')
    saved = torch.load(tmp_path / 'iter_4.pth', weights_only=True)
    averaged, last = saved['state_dict'], saved['ema_state_dict']
    assert not torch.equal(averaged['head.weight'], last['module.head.weight'])


def test_a_run_stops_early(tmp_path):
    early = dict(monitor='score', rule='less', patience=2)  # the metric rises
    changes = {f'custom_hooks.0.{key}': value for key, value in early.items()}
    changes |= dict(val=True, val_interval=1, max_iters=9)
    assert run(tmp_path, 'early stopping', **changes).iter == 3


def test_gradients_are_clipped_and_accumulated(tmp_path):
    wrapper = run(tmp_path, 'gradient clipping').optim_wrapper
    assert wrapper.clip_grad_kwargs == dict(max_norm=1.0)
    runner = run(tmp_path, 'gradient accumulation', max_iters=8)
    (state,) = {s['step'].item() for s in runner.optim_wrapper.optimizer.state.values()}
    assert state == 2


def test_the_rate_of_a_range_test_rises_and_is_drawn(tmp_path):
    from mmattn.analysis.training_logs import last_log
    from mmattn.cli.run_report import draw_rates

    logger = {'default_hooks': dict(logger=dict(type='LoggerHook', interval=1))}
    run(tmp_path, 'learning-rate range test', max_iters=60, **logger)
    records, _ = last_log(tmp_path)
    rates = [record['lr'] for record in records]
    assert len(rates) == 60 and rates[-1] == pytest.approx(1e-6 * 1.1**59)
    assert draw_rates(records, tmp_path / 'rates.png')
    assert (tmp_path / 'rates.png').stat().st_size > 5_000
    for other in (records[:30] + records[10:], records[:10]):  # falls, and is short
        assert not draw_rates(other, tmp_path / 'other.png')


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize('kind', [Terminal, io.StringIO])
def test_a_terminal_gets_a_bar_and_a_file_lines(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', kind())
    runner = make_runner(tmp_path, val=True, val_interval=2)
    handlers = list(runner.logger.handlers)
    runner.train()
    assert ('4/4' in sys.stderr.getvalue()) == (kind is Terminal)
    moved = re.findall(r'validates: +(\d+)%', sys.stderr.getvalue())
    assert (moved[-1:] == ['100']) == (kind is Terminal)
    assert runner.logger.handlers == handlers
    (log,) = tmp_path.glob('*/*.log')
    assert '\r' not in log.read_text() and 'Saving checkpoint' in log.read_text()


def test_the_bar_goes_when_a_run_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    runner = make_runner(tmp_path)
    monkeypatch.setattr(runner.model, 'train_step', lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.train()
    (hook,) = [hook for hook in runner.hooks if isinstance(hook, ProgressHook)]
    assert hook.bar is None
    assert any(type(h) is logging.StreamHandler for h in runner.logger.handlers)
