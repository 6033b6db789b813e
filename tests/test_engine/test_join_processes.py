"""Process groups on a machine without a GPU, and what DDP asks of gradients."""

from datetime import timedelta

import torch
from mmengine.config import Config
from torch.distributed import HashStore

from mmattn.engine.distributed import join_processes, match_gradient_strides
from mmattn.models import IViT


def test_timeout_and_wrapper_of_the_config_are_kept_on_a_cpu(monkeypatch):
    started, store = {}, HashStore()
    monkeypatch.setenv('RANK', '0')
    monkeypatch.delenv('TORCHELASTIC_RESTART_COUNT', raising=False)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    for name, function in {
        'rendezvous': lambda url: iter([(store, 0, 2)]),
        'init_process_group': lambda *args, **kw: started.update(kw, backend=args[0]),
    }.items():
        monkeypatch.setattr(torch.distributed, name, function)
    cfg = Config(dict(env_cfg=dict(dist_cfg=dict(timeout=90))))
    cfg.model_wrapper_cfg = dict(find_unused_parameters=True)
    join_processes(cfg)
    assert [started[key] for key in ('backend', 'rank', 'world_size')] == ['gloo', 0, 2]
    assert cfg.env_cfg.dist_cfg.backend == 'gloo'
    assert started['timeout'] == started['store'].timeout == timedelta(seconds=90)
    assert cfg.model_wrapper_cfg == dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=True,
        device_ids=None,
    )


def test_gradients_have_the_strides_of_their_weights():
    """DDP compares them, and warns if they differ."""
    model = IViT('nano')

    def others():
        model.zero_grad()
        sum(x.mean() for x in model(torch.rand(2, 3, 64, 64))).backward()
        weights = model.named_parameters()
        return [n for n, w in weights if w.grad.stride() != w.stride()]

    before = others()
    match_gradient_strides(model)
    assert not others() and all('dwconv' in name for name in before)
