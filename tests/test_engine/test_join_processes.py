"""Process groups on a machine without a GPU, and what DDP asks of gradients."""

from datetime import timedelta

import pytest
import torch
from mmengine.config import Config
from torch.distributed import HashStore

from mmattn.engine.distributed import join_processes, match_gradient_strides
from mmattn.models import IViT


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


def test_timeout_and_wrapper_of_the_config_are_kept(started):
    wrapper = dict(find_unused_parameters=True)
    dist_cfg = dict(env_cfg=dict(dist_cfg=dict(timeout=90)))
    cfg = Config(dict(**dist_cfg, model_wrapper_cfg=wrapper))
    join_processes(cfg)
    assert started['timeout'] == started['store'].timeout == timedelta(seconds=90)
    assert cfg.model_wrapper_cfg.find_unused_parameters
    assert cfg.model_wrapper_cfg.type == 'MMDistributedDataParallel'


def test_gradients_have_the_strides_of_their_weights():
    """DDP compares them, and warns if they differ."""
    model = IViT('nano')

    def others():
        model.zero_grad()
        sum(x.mean() for x in model(torch.rand(2, 3, 64, 64))).backward()
        return [
            name
            for name, weight in model.named_parameters()
            if weight.grad.stride() != weight.stride()
        ]

    before = others()
    match_gradient_strides(model)
    assert not others() and all('dwconv' in name for name in before)
