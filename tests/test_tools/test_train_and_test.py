"""The training tools, ours and mmdet's own, run as a user would, on toy data."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DETECTOR = """
_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'
model = dict(
    backbone=dict(arch='nano'),
    neck=dict(in_channels=[32, 64, 160, 256]),
    test_cfg=dict(rpn=dict(max_per_img=20), rcnn=dict(score_thr=0.0, max_per_img=5)))
load = dict(type='LoadImageFromFile')
annotate = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
resize = dict(type='Resize', scale=(96, 96), keep_ratio=True)
pack = dict(type='PackDetInputs', meta_keys=(
    'img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
loader = dict(batch_size=1, num_workers=0, persistent_workers=False)
train_dataloader = dict(**loader, dataset=dict(pipeline=[load, annotate, resize, pack]))
val_dataloader = dict(**loader, dataset=dict(pipeline=[load, resize, annotate, pack]))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=1)
default_hooks = dict(logger=dict(interval=1))
"""
CLASSIFIER = """
_base_ = 'mmattn::classification/vit_t16_imhsa_300e_in1k.py'
loader = dict(batch_size=2, num_workers=0, persistent_workers=False)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_epochs=1)
"""


STOCK_TOOL_BASES = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
custom_imports = dict(imports=['mmattn'])
"""
STOCK_TOOL_BACKBONE = "dict(_delete_=True, type='mmattn.IViT', arch='nano')"


def call(name: str, *args, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / 'tools' / name), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {'OMP_NUM_THREADS': '2'},
    )


def run(name: str, *args, cwd: Path) -> str:
    done = call(name, *args, cwd=cwd)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with toy COCO and ImageNet and configs that train on them in seconds."""
    folder = tmp_path_factory.mktemp('work')
    toy = 'datasets/toy.py'
    run(toy, 'coco', '--out', 'data/coco', '--num-images', 6, cwd=folder)
    run(toy, 'imagenet', '--out', 'data/imagenet', cwd=folder)
    (folder / 'detector.py').write_text(DETECTOR)
    (folder / 'classifier.py').write_text(CLASSIFIER)
    return folder


def test_a_detector_trains_resumes_is_tested_and_drawn(work):
    run_dir = work / 'work_dirs' / 'detector'
    checkpoint = run_dir / 'epoch_1.pth'
    out = run('train.py', 'detector.py', '--auto-scale-lr', cwd=work)
    assert 'coco/bbox_mAP' in out
    assert checkpoint.is_file()

    options = ('--resume', '--cfg-options', 'train_cfg.max_epochs=2')
    assert 'resumed epoch: 1' in run('train.py', 'detector.py', *options, cwd=work)
    assert (run_dir / 'epoch_2.pth').is_file()

    options = ('--out', 'predictions.pkl', '--show-dir', 'shown')
    out = run('test.py', 'detector.py', checkpoint, *options, cwd=work)
    assert 'coco/segm_mAP' in out
    predictions = pickle.loads((work / 'predictions.pkl').read_bytes())
    assert len(predictions) == 6
    assert {'bboxes', 'scores', 'masks'} <= set(predictions[0]['pred_instances'])
    assert len(list(run_dir.rglob('shown/*'))) == 6

    run('analysis/draw_run.py', 'detector.py', '--num-images', 2, cwd=work)
    for name in ('curves.png', 'predictions.png'):
        assert (run_dir / name).stat().st_size > 10_000
    summary = json.loads((run_dir / 'summary.json').read_text())
    assert set(summary['metrics']) == {'coco/bbox_mAP', 'coco/segm_mAP'}


def test_mmdets_own_tool_trains_with_our_backbone(work):
    mmdet = pytest.importorskip('mmdet')
    config = DETECTOR.replace("_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'", '')
    config = config.replace("dict(arch='nano')", STOCK_TOOL_BACKBONE)
    (work / 'stock.py').write_text(STOCK_TOOL_BASES + config)
    tool = Path(mmdet.__file__).parent / '.mim' / 'tools' / 'train.py'
    assert 'coco/bbox_mAP' in run(str(tool), 'stock.py', cwd=work)


def test_a_classifier_trains(work):
    assert 'accuracy/top1' in run('train.py', 'classifier.py', cwd=work)


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['missing.pth'], 'no checkpoint at missing.pth'),
        (['user.pth', '--out', 'a.json'], 'must end in .pkl'),
        (['user.pth', '--tta'], '--tta needs'),
    ],
    ids=['checkpoint', 'out', 'tta'],
)
def test_bad_arguments_are_named(work, args, message):
    (work / 'user.pth').touch()
    done = call('test.py', 'detector.py', *args, cwd=work)
    assert done.returncode != 0
    assert message in done.stderr
