"""A model and a run small enough for tests of what surrounds them."""

from uuid import uuid4

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import METRICS, MODELS
from torch import nn

from mmattn.engine import Runner


class Tiny(BaseModel):
    """A backbone with a batch norm, and a head of `classes` outputs."""

    def __init__(self, classes=3, width=4, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        self.backbone = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, classes)

    def forward(self, *points, mode='tensor'):
        out = self.head(self.backbone(torch.stack(points)))
        return {'loss': out.square().mean()} if mode == 'loss' else out


class Rising(BaseMetric):
    """1, 2, 3...: every validation is the best one so far."""

    count = 0

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        Rising.count += 1
        return {'score': Rising.count}


def make_runner(
    work_dir,
    *,
    model=None,
    max_iters=4,
    val_interval=100,
    test=False,
    val=False,
    **options,
) -> Runner:
    """A short run that keeps one checkpoint; `options` replace its config."""
    MODELS.module_dict['TinyModel'] = Tiny
    METRICS.module_dict['RisingMetric'] = Rising
    data = [torch.tensor([float(i), 1.0]) for i in range(4)]
    loader = dict(
        dataset=data,
        batch_size=2,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    cfg = dict(
        model=dict(type='TinyModel') | (model or {}),
        work_dir=str(work_dir),
        train_dataloader=loader,
        train_cfg=dict(
            type='IterBasedTrainLoop', max_iters=max_iters, val_interval=val_interval
        ),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        param_scheduler=dict(type='LinearLR', start_factor=0.1, by_epoch=False),
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook', interval=1, by_epoch=False, max_keep_ckpts=1
            )
        ),
        randomness=dict(seed=0),
        experiment_name=f'tiny_{uuid4()}',
    )
    if test:
        cfg.update(
            test_dataloader=loader,
            test_cfg=dict(type='TestLoop'),
            test_evaluator=dict(type='RisingMetric'),
        )
    if val:
        cfg.update(
            val_dataloader=loader,
            val_cfg=dict(type='ValLoop'),
            val_evaluator=dict(type='RisingMetric'),
        )
    return Runner.from_cfg(cfg | options)
