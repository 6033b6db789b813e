"""The training tools on toy data: as commands, mmdet's own, and option by option."""

import json
import pickle
import re
from pathlib import Path

import cv2
import mmdet
import numpy as np
import pytest
import torch
from fresh import run_python

ADE = 'data/ade/ADEChallengeData2016'
COCO_VAL = 'data/coco/annotations/instances_val2017.json'

MMDET_TOOLS = Path(mmdet.__file__).parent / '.mim' / 'tools'


def log_of(run_dir: Path) -> str:
    return sorted(run_dir.glob('*/*.log'))[-1].read_text()


def first_screen(capsys) -> str:
    """Return what the console has shown before the first iteration's line."""
    shown = ''.join(capsys.readouterr())
    line = re.search(r'.*(Epoch|Iter)\((train|test)\)', shown)
    screen = shown[: line.start()]
    assert len(screen.splitlines()) <= 40, screen
    assert 'work dir: ' in screen and 'device: cpu, ' in screen
    assert 'Config:' not in screen and 'Hooks will be' not in screen
    return screen


def test_a_detector_trains_resumes_is_tested_and_drawn(work, tool, capsys):
    run_dir = work / 'work_dirs' / 'detector'
    checkpoint = run_dir / 'epoch_1.pth'
    tool('train', 'detector.py')
    screen = first_screen(capsys)
    for part in (
        'WARNING - the backbone starts from random weights, but its recipe',
        'train_dataloader.dataset: 2 images, 8 objects, 80 classes (data/coco/ann',
        'model: MaskRCNN, backbone IViT, 231,068 parameters',
        'schedule: 2 iterations in 1 epoch, batches of 1\n',
        'AdamW of 0.0001, warm-up of 1000 iterations (LinearLR), MultiStepLR over',
        'device: cpu, float32\n',
    ):
        assert part in screen
    assert checkpoint.is_file()
    log = log_of(run_dir)
    assert 'Config:\n' in log and 'System environment' in log
    assert 'coco/bbox_mAP' in log
    assert log.count('WARNING - the backbone starts from random weights, but') == 1

    options = ('--resume', '--cfg-options', 'train_cfg.max_epochs=2')
    tool('train', 'detector.py', *options)
    assert 'resumed epoch: 1' in log_of(run_dir)
    assert 'batches of 1, resumed after iteration 2\n' in first_screen(capsys)
    assert (run_dir / 'epoch_2.pth').is_file()

    capsys.readouterr()
    out = ('--out', 'predictions.pkl', '--show-dir', 'shown')
    tool('test', 'detector.py', checkpoint, *out)
    screen = first_screen(capsys)
    assert 'test_dataloader.dataset: 4 images' in screen
    assert f'Load checkpoint from {checkpoint}' in screen and 'model: Mask' in screen
    predictions = pickle.loads((work / 'predictions.pkl').read_bytes())
    assert len(predictions) == 4
    assert {'bboxes', 'scores', 'masks'} <= set(predictions[0]['pred_instances'])
    assert len(list(run_dir.rglob('shown/*'))) == 4

    tool('test', 'detector.py', checkpoint, '--per-class', '--confusion')
    results = json.loads((run_dir / 'results.json').read_text())
    assert results['images'] == 4 and results['seconds'] > 0
    assert set(results['classes']) == {'bbox', 'segm'}
    rows = results['classes']['bbox'].values()
    mean = np.mean([row['mAP'] for row in rows if row['mAP'] is not None])
    assert results['metrics']['coco/bbox_mAP'] == pytest.approx(mean, abs=6e-4)
    counts = np.array(results['confusion']['counts'])
    assert counts.shape == (81, 81)
    truth = json.loads((work / COCO_VAL).read_text())['annotations']
    assert counts[:-1].sum() == sum(not entry['iscrowd'] for entry in truth)
    for name in ('confusion_matrix.png', 'precision_recall.png'):
        assert cv2.imread(f'{run_dir}/{name}').std() > 1

    out = ('--out', 'boxes.pkl', '--show-dir', 'shown_tta')
    with pytest.warns(UserWarning, match='--tta: boxes only'):
        tool('test', 'detector.py', checkpoint, '--tta', *out)
    log = log_of(run_dir)
    assert 'coco/bbox_mAP' in log and 'segm' not in log.split('Epoch(test)')[-1]
    boxes = pickle.loads((work / 'boxes.pkl').read_bytes())
    assert set(boxes[0]['pred_instances']) == {'bboxes', 'scores', 'labels'}
    assert len(list(run_dir.rglob('shown_tta/*'))) == 4

    tool('report', 'detector.py', '--num-images', 2)
    report = (run_dir / 'report.md').read_text()
    pictures = re.findall(r'\]\((.*)\)', report)
    assert {'curves.png', 'predictions.png'} <= {*pictures}
    assert all((run_dir / name).stat().st_size > 10_000 for name in pictures)
    # The last test, which asked for no classes, has replaced the results.
    assert 'confusion' not in report and '| coco/bbox_mAP |' in report
    summary = json.loads((run_dir / 'summary.json').read_text())
    assert set(summary['metrics']) == {'coco/bbox_mAP', 'coco/segm_mAP'}


@pytest.mark.slow
def test_mmdets_own_tool_trains_with_our_backbone(work):
    stock = '-m', 'mmattn', 'run', MMDET_TOOLS / 'train.py'
    done = run_python(*stock, 'stock.py', cwd=work)
    assert 'coco/bbox_mAP' in done.stdout + done.stderr


@pytest.mark.slow
def test_a_classifier_trains_is_tested_and_drawn(work, tool, capsys):
    run_dir = work / 'work_dirs' / 'classifier'
    tool('train', 'classifier.py', '--amp', '--auto-scale-lr', '--no-validate')
    log = log_of(run_dir)
    screen = first_screen(capsys)
    assert 'train_dataloader.dataset: 4 images, 4 labels, 1000 classes' in screen
    assert 'device: cpu, mixed precision in bfloat16\n' in screen
    assert 'Scaling the original LR by 0.001953125' in log  # 2 of 1024 images
    assert 'Epoch(train)' in log and 'accuracy/top1' not in log
    checkpoint = run_dir / 'epoch_1.pth'

    # A batch of 2, drawn: the first of each.
    out = ('--out', 'scores.pkl', '--show-dir', 'classes', '--interval', 2)
    tool('test', 'classifier.py', checkpoint, *out)
    assert len(list((work / 'classes').iterdir())) == 2
    tool('test', 'classifier.py', checkpoint, '--out', 'amp.pkl', '--amp')
    full, half = (
        [p['pred_score'] for p in pickle.loads((work / name).read_bytes())]
        for name in ('scores.pkl', 'amp.pkl')
    )
    assert len(full) == len(half) == 4
    assert not torch.equal(full[0], half[0].float())
    torch.testing.assert_close(full[0], half[0].float(), rtol=0.1, atol=1e-4)

    out = ('--out', 'metrics.json', '--out-item', 'metrics')
    tool('test', 'classifier.py', checkpoint, '--tta', '--per-class', *out)
    metrics = json.loads((work / 'metrics.json').read_text())
    classes = json.loads((run_dir / 'results.json').read_text())['classes']['labels']
    recalls = [row['recall'] for row in classes.values() if row['recall'] is not None]
    assert len(classes) == 1000
    assert np.mean(recalls) == pytest.approx(metrics['accuracy/top1'])  # one each
    assert set(metrics) == {'accuracy/top1', 'accuracy/top5'}


@pytest.mark.slow
def test_a_segmentor_trains_is_tested_and_drawn(work, tool, capsys):
    run_dir = work / 'work_dirs' / 'segmentor'
    tool('train', 'segmentor.py', '--amp-dtype', 'bfloat16')
    assert 'mIoU' in log_of(run_dir)
    screen = first_screen(capsys)
    assert re.search(r'train_dataloader.dataset: \d+ images, 150 classes', screen)
    assert 'schedule: 2 iterations, batches of 1\n' in screen
    checkpoint = run_dir / 'iter_2.pth'

    out = ('--out', 'labels', '--show-dir', 'maps')
    tool('test', 'segmentor.py', checkpoint, '--tta', '--amp', *out)
    assert len(list((work / 'maps/vis_data/vis_image').iterdir())) == 4
    names = {path.name for path in (work / 'labels').iterdir()}
    assert names == {f'ADE_val_{i:08d}.png' for i in range(1, 5)}
    label = cv2.imread('labels/ADE_val_00000001.png', cv2.IMREAD_UNCHANGED)
    image = cv2.imread(f'{ADE}/images/validation/ADE_val_00000001.jpg')
    assert label.shape == image.shape[:2] and label.max() <= 150

    details = '--per-class', '--confusion'
    tool('test', 'segmentor.py', checkpoint, '--out', 'labels.pkl', *details)
    results = json.loads((run_dir / 'results.json').read_text())
    rows = results['classes']['labels'].values()
    ious = [row['IoU'] for row in rows if row['IoU'] is not None]
    assert np.mean(ious) == pytest.approx(results['metrics']['mIoU'], abs=0.01)
    assert (run_dir / 'confusion_matrix.png').is_file()
    predictions = pickle.loads((work / 'labels.pkl').read_bytes())
    alone = predictions[0]['pred_sem_seg']['data'].squeeze().numpy() + 1
    assert alone.shape == label.shape
    assert not np.array_equal(alone, label)  # six augmented views say something else
