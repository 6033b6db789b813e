"""Time one training step of Mask R-CNN, where mmdetection is installed."""

import csv
import importlib.util

from .log import Log, Settings

TITLE = 'Training step of Mask R-CNN'
SHARE = 8


def tasks(settings: Settings) -> list[str]:
    return ['mask_rcnn']


def run(task: str, settings: Settings, log: Log):
    missing = [
        n for n in ('mmdet', 'mmcv', 'cv2') if importlib.util.find_spec(n) is None
    ]
    if missing:
        why = f'{" and ".join(missing)} are not installed'
        log.write('left out', case='Mask R-CNN', why=why)
        return
    log.attempt('Mask R-CNN with IViT-T beside its peers', lambda: step(settings))


def step(settings: Settings):
    from tools.benchmark import train_step

    path = settings.lines / 'train_step.csv'
    options = ['--device', settings.device, '--csv', str(path), '--rounds', '3']
    if settings.dry_run:
        options.append('--quick')
    else:
        options += ['--size', '800', '1333', '--batch', '2']
    train_step.main(options)
    with path.open(newline='') as file:
        for row in csv.DictReader(file):
            yield 'train_step_gpu', row
