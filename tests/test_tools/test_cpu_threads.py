"""The threads that train.py and test.py use beside other programs."""

import os
import subprocess
import sys

import pytest

from mmattn.cli import cpu_threads

STAT = """cpu  0 0 0 0 0 0 0 0 0 0
cpu0 {busy} 0 0 {idle} 0 0 0 0 0 0
cpu1 0 0 0 {idle} {idle} 0 0 0 0 0
cpu2 {busy} 0 0 0 0 0 0 {busy} {busy} 0
intr 1 2 3
"""
# Pretend that every CPU is in use, and build a runner.
SCRIPT = """
import itertools, pathlib, sys
plain, ticks = pathlib.Path.read_text, itertools.count(0, 30)

def read_text(path, *args, **kwargs):
    if str(path) != '/proc/stat':
        return plain(path, *args, **kwargs)
    used = next(ticks)
    return ''.join(f'cpu{i} {used} 0 0 0 0 0 0 0\\n' for i in range(1024))

pathlib.Path.read_text = read_text
import importlib
tool = importlib.import_module('mmattn.cli.' + sys.argv[1])
import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS

class Stub:
    @classmethod
    def from_cfg(cls, cfg):
        print('threads', torch.get_num_threads())

RUNNERS.register_module(name='Stub', module=Stub)
tool.build_runner(Config(dict(runner_type='Stub')))
"""


@pytest.mark.parametrize(
    ('cpus', 'taken', 'threads', 'policy'),
    [
        (2, 0.4, None, None),
        (2, 2.0, 1, 'PASSIVE'),
        (1, 1.0, 1, 'PASSIVE'),
        (64, 1.0, 63, None),
        (64, 16.2, 48, 'PASSIVE'),
    ],
)
def test_threads_leave_the_cpus_that_others_use(cpus, taken, threads, policy):
    choice = cpu_threads.choose(cpus, taken, {})
    assert choice[:2] == (threads, policy)
    assert choice.reason == f'other programs use {taken:.1f} of {cpus} CPUs'


@pytest.mark.parametrize(
    ('environ', 'threads', 'policy'),
    [
        ({'OMP_NUM_THREADS': '2'}, None, 'PASSIVE'),
        ({'OMP_WAIT_POLICY': 'ACTIVE'}, 1, None),
        ({'OMP_NUM_THREADS': '2', 'OMP_WAIT_POLICY': 'ACTIVE'}, None, None),
    ],
)
def test_what_the_user_has_set_stays(environ, threads, policy):
    choice = cpu_threads.choose(2, 2.0, environ)
    assert choice[:2] == (threads, policy)
    for name, value in environ.items():
        assert f'{name}={value} is set' in choice.reason


def test_only_allowed_cpus_are_measured(tmp_path, monkeypatch):
    stat = tmp_path / 'stat'
    stat.write_text(STAT.format(busy=1000, idle=1000))
    monkeypatch.setattr(cpu_threads, 'STAT', stat)
    later = STAT.format(busy=1010, idle=1030)
    monkeypatch.setattr(cpu_threads.time, 'sleep', lambda _: stat.write_text(later))
    # CPU 1 waited for the disk, and other machines of the host used CPU 2.
    for cpus, taken in (({0}, 0.25), ({1}, 0), ({2}, 1), ({0, 1, 2}, 1.25)):
        stat.write_text(STAT.format(busy=1000, idle=1000))
        assert cpu_threads.taken_cpus(cpus) == pytest.approx(taken)
    assert cpu_threads.taken_cpus({0}) == 0  # no tick has passed


def test_without_proc_the_load_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_threads, 'STAT', tmp_path / 'missing')
    monkeypatch.setattr(os, 'getloadavg', lambda: (1.5, 9, 9))
    assert cpu_threads.taken_cpus({0, 1}) == 1.5
    assert cpu_threads.taken_cpus({0}) == 1


def test_nothing_changes_after_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, 'torch', object())
    monkeypatch.setattr(cpu_threads, 'taken_cpus', lambda cpus: len(cpus))
    monkeypatch.delenv('OMP_WAIT_POLICY', raising=False)
    assert cpu_threads.prepare()[:2] == (None, None)
    assert 'OMP_WAIT_POLICY' not in os.environ


@pytest.mark.skipif(not cpu_threads.STAT.exists(), reason='reads /proc/stat')
@pytest.mark.skipif(len(cpu_threads.allowed_cpus()) < 2, reason='one CPU, one thread')
@pytest.mark.parametrize(
    'tool', ['train', pytest.param('test', marks=pytest.mark.slow)]
)
def test_a_tool_chooses_before_openmp_is_loaded(tool, tmp_path):
    environ = {k: v for k, v in os.environ.items() if not k.startswith('OMP_')}
    environ |= {'OMP_DISPLAY_ENV': 'TRUE'}
    done = subprocess.run(
        [sys.executable, '-c', SCRIPT, tool],
        env=environ,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert 'threads 1\n' in done.stdout
    output = done.stdout + done.stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in output
    assert 'CPU threads: 1, OMP_WAIT_POLICY=PASSIVE (other programs use' in output
