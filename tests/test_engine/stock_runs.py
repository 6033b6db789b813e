"""Train stock configs whose necks or heads leave a map of our backbones unread.

`torchrun tests/test_engine/stock_runs.py NAME...` trains each on all processes.
"""

import sys
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch.utils.data import Dataset

import mmattn  # noqa: F401
from mmattn.engine import Runner
from mmattn.engine.distributed import join_processes
from mmattn.registry import MODELS
from tools.dev.stock import batches, load, model_of

STEPS, SIDE = 3, 64
DDP = dict(broadcast_buffers=False, device_ids=None)  # on CPUs
STOCK = {
    'retinanet/retinanet_r50_fpn_1x_coco.py': 'IViT',
    'condinst/condinst_r50_fpn_ms-poly-90k_coco_instance.py': 'LiSANet',
    'tood/tood_r50_fpn_1x_coco.py': 'HMaiT',
    'vfnet/vfnet_r50_fpn_1x_coco.py': 'DAT',
    'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py': 'DATPlusPlus',
    'gfl/gfl_r50_fpn_1x_coco.py': 'IViT',
    'fsaf/fsaf_r50_fpn_1x_coco.py': 'LiSANet',
    'ddod/ddod_r50_fpn_1x_coco.py': 'HMaiT',
    'fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py': 'DAT',
    'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py': 'DATPlusPlus',
    'pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py': 'IViT',
    'setr/setr_vit-l_naive_8xb2-160k_ade20k-512x512.py': 'HMaiT',
}


class Samples(Dataset):
    """Four random images with labels, as the model of a stock config reads them."""

    def __init__(self, package: str, name: str, model: dict):
        torch.manual_seed(0)
        batch = batches(package, model, SIDE)[0]
        pairs = zip(batch['inputs'], batch['data_samples'], strict=True)
        self.samples = [dict(inputs=x, data_samples=y) for x, y in pairs] * 2

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict:
        return deepcopy(self.samples[index])


def runner_of(name: str, work_dir: Path) -> Runner:
    """Return the runner of a stock config with one of our backbones in its place."""
    method = name.split('/')[0]
    package = 'mmseg' if 'ade20k' in name else 'mmdet'
    cfg = load(package, name)
    kind = MODELS.get(STOCK[name])
    arch = next(iter(kind.arch_zoo))
    channels = list(kind(arch).out_channels)
    small = model_of(package, cfg, SIDE)
    small['backbone'] = dict(type=f'mmattn.{STOCK[name]}', arch=arch)
    if 'neck' in small:
        small['neck']['in_channels'] = channels
    for key in ('decode_head', 'auxiliary_head'):
        heads = small.get(key, [])
        for head in heads if isinstance(heads, list) else [heads]:
            head['in_channels'] = channels[head['in_index']]
            if 'c1_in_channels' in head:
                head['c1_in_channels'] = channels[0]
    DATASETS.module_dict['StockSamples'] = Samples
    data = dict(type='StockSamples', package=package, name=name, model=small)
    sampler = dict(type='InfiniteSampler')
    settings = dict(
        default_scope=package,
        model=small,
        work_dir=str(work_dir),
        experiment_name=f'{method}_{work_dir.name}',
        launcher='pytorch',
        model_wrapper_cfg=DDP,
        train_dataloader=dict(
            dataset=data, batch_size=2, num_workers=0, sampler=sampler
        ),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=STEPS),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-4)),
    )
    return Runner.from_cfg(Config(settings))


def main():
    join_processes(Config(dict(env_cfg=dict(dist_cfg=dict(backend='gloo')))))
    for name in sys.argv[1:]:
        with TemporaryDirectory() as folder:
            runner = runner_of(name, Path(folder))
            runner.train()
        print(f'trained {name} for {runner.iter} steps')
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
