"""tools/train.py, test.py and draw_run.py, run as a user would, on toy data."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_tool(name: str, *args, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tools' / name), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {'OMP_NUM_THREADS': '2'},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with toy COCO and ImageNet and configs that train on them in seconds."""
    folder = tmp_path_factory.mktemp('work')
    run_tool('datasets/toy.py', 'coco', '--out', 'data/coco', '--num-images', 6, cwd=folder)
    run_tool('datasets/toy.py', 'imagenet', '--out', 'data/imagenet', cwd=folder)
    (folder / 'detector.py').write_text(
        "_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'\n"
        "model = dict(backbone=dict(arch='nano'), neck=dict(in_channels=[32, 64, 160, 256]),"
        ' test_cfg=dict(rcnn=dict(score_thr=0.0)))\n'
        'train_pipeline = [\n'
        "    dict(type='LoadImageFromFile'),\n"
        "    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),\n"
        "    dict(type='Resize', scale=(96, 96), keep_ratio=True),\n"
        "    dict(type='PackDetInputs')]\n"
        'loader = dict(batch_size=1, num_workers=0, persistent_workers=False)\n'
        'train_dataloader = dict(dataset=dict(pipeline=train_pipeline), **loader)\n'
        'val_dataloader = dict(dataset=dict(pipeline=train_pipeline), **loader)\n'
        'test_dataloader = val_dataloader\n'
        'train_cfg = dict(max_epochs=1)\n'
        'default_hooks = dict(logger=dict(interval=1))\n'
    )
    (folder / 'classifier.py').write_text(
        "_base_ = 'mmattn::classification/vit_t16_imhsa_300e_in1k.py'\n"
        'loader = dict(batch_size=2, num_workers=0, persistent_workers=False)\n'
        'train_dataloader = loader\nval_dataloader = loader\ntest_dataloader = loader\n'
        'train_cfg = dict(max_epochs=1)\n'
    )
    return folder


def test_detector_trains_resumes_tests_and_is_drawn(work):
    out = run_tool('train.py', 'detector.py', '--auto-scale-lr', cwd=work)
    assert 'coco/bbox_mAP' in out
    checkpoint = work / 'work_dirs' / 'detector' / 'epoch_1.pth'
    assert checkpoint.is_file()
    out = run_tool(
        'train.py', 'detector.py', '--resume', '--cfg-options', 'train_cfg.max_epochs=2',
        cwd=work,
    )  # fmt: skip
    assert 'resumed epoch: 1' in out
    out = run_tool(
        'test.py', 'detector.py', checkpoint, '--out', 'pred.pkl', '--show-dir', 'shown',
        cwd=work,
    )  # fmt: skip
    assert 'coco/segm_mAP' in out
    predictions = pickle.loads((work / 'pred.pkl').read_bytes())
    assert len(predictions) == 6
    assert {'boxes', 'scores'} <= {
        key.replace('bboxes', 'boxes') for key in predictions[0]['pred_instances']
    }
    assert list((work / 'work_dirs' / 'detector').rglob('shown/*'))
    run_tool('analysis/draw_run.py', 'detector.py', '--num-images', 2, cwd=work)
    for name in ('curves.png', 'predictions.png'):
        assert (work / 'work_dirs' / 'detector' / name).stat().st_size > 10_000


def test_classifier_trains(work):
    out = run_tool('train.py', 'classifier.py', cwd=work)
    assert 'accuracy/top1' in out


@pytest.mark.parametrize(
    ('tool', 'args', 'message'),
    [
        ('test.py', ['missing.pth'], 'no checkpoint at missing.pth'),
        ('test.py', ['user.pth', '--out', 'a.json'], 'must end in .pkl'),
        ('test.py', ['user.pth', '--tta'], '--tta needs'),
    ],
    ids=['checkpoint', 'out', 'tta'],
)
def test_bad_arguments_are_named(work, tool, args, message):
    (work / 'user.pth').touch()
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tools' / tool), 'detector.py', *args],
        cwd=work,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert message in done.stderr
