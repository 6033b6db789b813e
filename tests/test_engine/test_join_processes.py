"""The arguments of the process group and of DDP on a machine without a GPU."""

from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

pytest.importorskip('mmengine')
from mmengine.config import Config

from mmattn.engine.distributed import join_processes


@pytest.fixture
def started(monkeypatch):
    """Rank 0 of 2 without CUDA; the arguments of `init_process_group` end up here."""
    arguments = {}
    store = HashStore()
    monkeypatch.setenv('RANK', '0')
    monkeypatch.delenv('TORCHELASTIC_RESTART_COUNT', raising=False)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(
        torch.distributed, 'rendezvous', lambda url: iter([(store, 0, 2)])
    )
    monkeypatch.setattr(
        torch.distributed,
        'init_process_group',
        lambda backend, **others: arguments.update(others, backend=backend),
    )
    return arguments


def test_the_backend_is_gloo_and_ddp_is_of_the_cpu(started):
    cfg = Config()
    join_processes(cfg)
    assert (started['backend'], started['rank'], started['world_size']) == (
        'gloo',
        0,
        2,
    )
    assert cfg.env_cfg.dist_cfg.backend == 'gloo'
    assert cfg.model_wrapper_cfg == dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=False,
        device_ids=None,
    )


def test_the_timeout_is_in_seconds(started):
    join_processes(Config(dict(env_cfg=dict(dist_cfg=dict(timeout=90)))))
    assert started['timeout'] == started['store'].timeout == timedelta(seconds=90)


def test_the_wrapper_of_the_config_is_kept(started):
    cfg = Config(dict(model_wrapper_cfg=dict(find_unused_parameters=True)))
    join_processes(cfg)
    assert cfg.model_wrapper_cfg.find_unused_parameters
    assert cfg.model_wrapper_cfg.type == 'MMDistributedDataParallel'
    assert cfg.model_wrapper_cfg.device_ids is None
