"""Toy data sets, and runs on them that stop at the first batch."""

import json
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import cv2
from mmengine.model import BaseModel
from torch import nn

from mmattn.engine import Runner

COCO_FILE = 'coco/annotations/instances_train2017.json'
COCO_IMAGE = 'coco/train2017/000000001000.jpg'
ADE_ROOT = 'ade/ADEChallengeData2016'
ADE_IMAGE = f'{ADE_ROOT}/images/training/ADE_train_00000001.jpg'
ADE_MAP = f'{ADE_ROOT}/annotations/training/ADE_train_00000001.png'
IMAGENET_LIST = 'imagenet/meta/train.txt'
IMAGENET_IMAGE = 'imagenet/train/n01440764/n01440764_1.JPEG'
LOAD, ANNOTATE = dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')
ADE_PREFIX = dict(img_path='images/training', seg_map_path='annotations/training')
DATASETS = {
    'mmdet': dict(
        type='CocoDataset',
        data_root='coco',
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        pipeline=[LOAD, dict(ANNOTATE, with_bbox=True), dict(type='PackDetInputs')],
    ),
    'mmseg': dict(
        type='ADE20KDataset',
        data_root=ADE_ROOT,
        data_prefix=ADE_PREFIX,
        pipeline=[LOAD, ANNOTATE, dict(type='PackSegInputs')],
    ),
    'mmpretrain': dict(
        type='ImageNet',
        data_root='imagenet',
        split='train',
        pipeline=[LOAD, dict(type='PackInputs')],
    ),
}


class Model(BaseModel):
    """Nothing but heads with the attributes of the given names."""

    def __init__(self, **heads):
        super().__init__()
        for name, attributes in heads.items():
            head = nn.Linear(1, 1)
            vars(head).update(attributes)
            self.add_module(name, head)

    def forward(self, *args, **kwargs):
        raise NotImplementedError


class QuietRunner(Runner):
    """Without what takes longer than the tests: compilers' versions, a canvas."""

    def _log_env(self, env_cfg):
        pass

    def build_visualizer(self, visualizer=None):
        return SimpleNamespace(add_config=lambda cfg: None)


def train_loader(dataset, *, scope='mmdet', num_workers=0, model=None):
    """The loader of a run's training loop, which `Runner.train` builds first."""
    loader = dict(
        dataset=dataset,
        batch_size=1,
        num_workers=num_workers,
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    runner = QuietRunner(
        model or Model(),
        work_dir='run',
        default_scope=scope,
        train_dataloader=loader,
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(logger=None, checkpoint=None),
        experiment_name=f'bad_{uuid4()}',
        log_level='ERROR',
    )
    return runner.build_train_loop(runner._train_loop).dataloader


def load_all(dataset, **options) -> list:
    return list(train_loader(dataset, **options))


def edit_coco(change) -> None:
    path = Path(COCO_FILE)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def cut(path: str, share: float = 0.9) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(share * len(content))])


def edit_map(change) -> None:
    labels = cv2.imread(ADE_MAP, cv2.IMREAD_UNCHANGED)
    cv2.imwrite(ADE_MAP, change(labels))
