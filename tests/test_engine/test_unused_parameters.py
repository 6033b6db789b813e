"""Several processes train where no part of a model reads a map, or say what to do."""

from pathlib import Path

import pytest
from fresh import run_python
from stock_runs import DDP, STEPS, STOCK, runner_of
from torch import distributed

RETINANET, FCN = (next(name for name in STOCK if m in name) for m in ('retina', 'fcn'))


@pytest.fixture
def process_group(monkeypatch):
    """A group of this process alone, in which DDP behaves as in a larger one."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    distributed.init_process_group(
        'gloo', store=distributed.HashStore(), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize('name', [RETINANET, pytest.param(FCN, marks=pytest.mark.slow)])
def test_the_norm_of_an_unread_map_is_frozen(process_group, tmp_path, name):
    runner = runner_of(name, tmp_path)
    runner.train()
    assert runner.iter == STEPS
    backbone = runner.model.module.backbone
    frozen = {n for n, p in backbone.named_parameters() if not p.requires_grad}
    levels = [0] if name == RETINANET else [0, 1]
    norms = {f'out_norms.{i}.{n}' for i in levels for n in ('weight', 'bias')}
    assert frozen == norms & dict(backbone.named_parameters()).keys() != set()


def test_other_unused_parameters_are_named(process_group, tmp_path):
    runner = runner_of(RETINANET, tmp_path)
    runner.model.module.backbone.out_norms['0'].requires_grad_(True)
    runner.model = runner.wrap_model(dict(DDP), runner.model.module)
    message = (
        r'^1 parameters .*: backbone.out_norms.0.weight\. .*unused_parameters=True'
    )
    with pytest.raises(ValueError, match=message):
        runner.train()


@pytest.mark.slow
def test_stock_configs_train_in_two_processes():
    command = '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2'
    script = Path(__file__).with_name('stock_runs.py')
    done = run_python(*command, script, *STOCK)
    for name in STOCK:
        assert done.stdout.count(f'trained {name} for {STEPS} steps') == 2
