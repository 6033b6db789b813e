"""Process groups that mmengine cannot start: without a GPU, and after a restart."""

import os
from datetime import timedelta

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from torch import nn
from torch.distributed import PrefixStore


def join_processes(cfg: Config, backend: str | None = None):
    """Start the process group of `--launcher pytorch`, which mmengine then uses.

    Without CUDA mmengine fails, because it assigns a GPU to each process first. Here
    the backend is gloo, and DDP wraps a model on the CPU.

    When torchrun restarts the processes, the store may still hold the addresses of the
    processes that died, and the new ones wait for them. Here each start has its own
    keys.

    Args:
        cfg: the config to run, changed in place.
        backend: the user's choice. It defaults to gloo, with CUDA to the config's.
    """
    restarts = int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0))
    if torch.cuda.is_available():
        if restarts == 0:
            return  # mmengine's way works
        torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    else:
        _use_cpu(cfg, backend or 'gloo')
    kwargs = dict(cfg.get('env_cfg', {}).get('dist_cfg', {}))
    if 'timeout' in kwargs:
        kwargs['timeout'] = timedelta(seconds=kwargs['timeout'])
    store, rank, world_size = next(torch.distributed.rendezvous('env://'))
    store.set_timeout(kwargs.get('timeout', timedelta(minutes=30)))
    torch.distributed.init_process_group(
        kwargs.pop('backend', 'nccl'),
        store=PrefixStore(f'start_{restarts}', store),
        rank=rank,
        world_size=world_size,
        **kwargs,
    )


def match_gradient_strides(model: nn.Module):
    """Give the gradients of depthwise kernels the strides of their weights.

    oneDNN returns shape (C, 1, K, K) with a stride of 1 for the second dimension, where
    any stride is right. DDP takes it for another layout and warns of slow copies.
    """
    for weight in model.parameters():
        if weight.requires_grad and weight.ndim == 4 and weight.shape[1] == 1:
            if weight.stride() == _usual_strides(weight).stride():
                weight.register_hook(_usual_strides)


def _usual_strides(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.squeeze(1).unsqueeze(1)


def _use_cpu(cfg: Config, backend: str):
    configured = cfg.get('env_cfg', {}).get('dist_cfg', {}).get('backend', 'nccl')
    if backend != configured and os.environ['RANK'] == '0':
        print_log(f'CUDA is not available: the backend is {backend}, not {configured}.')
    cfg.merge_from_dict({'env_cfg.dist_cfg.backend': backend})
    wrapper = dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )
    cfg.model_wrapper_cfg = wrapper | cfg.get('model_wrapper_cfg', {})
    cfg.model_wrapper_cfg.device_ids = None
