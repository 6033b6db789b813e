"""Run the tools on toy data, in this process or as scripts."""

import importlib
import shutil
import sys

import pytest

COCO_LOADERS = """
load = dict(type='LoadImageFromFile')
annotate = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
resize = dict(type='Resize', scale=(96, 96), keep_ratio=True)
pack = dict(type='PackDetInputs', meta_keys=(
    'img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
loader = dict(batch_size=1, num_workers=0, persistent_workers=False)
train_dataloader = dict(**loader, dataset=dict(pipeline=[load, annotate, resize, pack]))
val_dataloader = dict(**loader, dataset=dict(pipeline=[load, resize, annotate, pack]))
test_dataloader = val_dataloader
default_hooks = dict(logger=dict(interval=1))
"""
NARROW = 'embed_dims=(8, 16, 32, 64), depths=(1, 1, 1, 1), num_heads=(2, 4)'
DETECTOR = f"""
_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'
model = dict(
    backbone=dict(arch=dict(_delete_=True, {NARROW})),
    neck=dict(in_channels=[8, 16, 32, 64], out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=32),
        mask_roi_extractor=dict(out_channels=32),
        bbox_head=dict(in_channels=32, fc_out_channels=32),
        mask_head=dict(in_channels=32, conv_out_channels=32, num_convs=1)),
    train_cfg=dict(
        rpn_proposal=dict(max_per_img=50), rcnn=dict(sampler=dict(num=16))),
    test_cfg=dict(rpn=dict(max_per_img=20), rcnn=dict(score_thr=0.0, max_per_img=5)))
train_cfg = dict(max_epochs=1)
{COCO_LOADERS}"""
CLASSIFIER = """
_base_ = 'mmattn::classification/vit_t16_imhsa_300e_in1k.py'
loader = dict(batch_size=2, num_workers=0, persistent_workers=False)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_epochs=1)
default_hooks = dict(logger=dict(interval=1))
"""
SEGMENTOR = """
_base_ = 'mmattn::demo/upernet_ivit_n_landcover.py'
model = dict(decode_head=dict(num_classes=150, loss_decode=dict(class_weight=None)))
data = dict(
    type='ADE20KDataset', data_root='data/ade/ADEChallengeData2016', metainfo=None,
    reduce_zero_label=True)
loader = dict(batch_size=1, num_workers=0, persistent_workers=False, dataset=data)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_iters=2, val_interval=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2))
"""
STOCK_TOOL_BASES = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
custom_imports = dict(imports=['mmattn'])
"""
STOCK_TOOL_BACKBONE = f"dict(_delete_=True, type='mmattn.IViT', arch=dict({NARROW}))"
CONFIGS = {
    'detector': DETECTOR,
    'classifier': CLASSIFIER,
    'segmentor': SEGMENTOR,
    'stock': STOCK_TOOL_BASES
    + DETECTOR.replace("_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'", '').replace(
        f'dict(arch=dict(_delete_=True, {NARROW}))', STOCK_TOOL_BACKBONE
    ),
}


def load_tool(name: str):
    """Return the module with the `main` of a tool: 'train', 'datasets/toy'."""
    homes = {
        '': 'mmattn.cli',
        'analysis': 'tools.analysis',
        'data': 'mmattn.data',
        'datasets': 'tools.datasets',
        'converters': 'tools.converters',
    }
    folder, _, tool = name.rpartition('/')
    home = homes[folder]
    return importlib.import_module(f'{home}.{tool}')


@pytest.fixture(scope='session')
def toys(tmp_path_factory):
    """A folder with toy data."""
    from tools.datasets import toy

    folder = tmp_path_factory.mktemp('toys')
    toy.make_coco(folder / 'data/coco')
    toy.make_imagenet(folder / 'data/imagenet')
    toy.make_ade20k(folder / 'data/ade')
    return folder


@pytest.fixture(scope='module')
def work(toys, tmp_path_factory):
    """A folder with toy data and configs that train on them in seconds."""
    folder = tmp_path_factory.mktemp('work')
    shutil.copytree(toys, folder, dirs_exist_ok=True)
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    return folder


@pytest.fixture
def tool(work, monkeypatch, forget_instances):
    """Runs the `main` of a tool in the work folder, in this process."""
    from tools.test import with_weights

    monkeypatch.chdir(work)
    monkeypatch.setenv('LOCAL_RANK', '0')

    def call(name: str, *args, patched: dict | None = None):
        forget_instances()
        module = load_tool(name)
        for key, value in (patched or {}).items():
            monkeypatch.setattr(module, key, value)
        args = [*map(str, args)]
        args = with_weights(args) if name == 'test' else args
        monkeypatch.setattr(sys, 'argv', [name, *args])
        monkeypatch.setattr(sys, 'path', sys.path[:])
        return module.main(args)

    return call
