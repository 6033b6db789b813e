"""Evaluate an exported detector or segmentor with labeled images.

    python tools/analysis/evaluate_export.py model.onnx \
        data/hela/annotations/instances_val.json data/hela/val
    python tools/analysis/evaluate_export.py model.onnx \
        data/landcover/annotations/validation data/landcover/images/validation

A detector requires the annotations of COCO as json. The result is the average precision
of its boxes and, if it has any, of its masks. A segmentor requires a folder of label
maps, named as the images. The result is its mIoU and accuracy.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from mmattn.cli.terminal import run_main
from mmattn.data.coco_json import numbered, read_coco
from mmattn.errors import UserError
from mmattn.export import load
from mmattn.export.metrics import (
    IGNORED,
    average_precision,
    coco_of,
    confusion,
    overlap,
)
from mmattn.export.runner import Runner
from mmattn.images import read_labels


def evaluate_detector(runner: Runner, annotations: Path, images: Path) -> dict:
    """Return bbox_mAP, and segm_mAP of a detector with masks.

    Raises:
        ValueError: there are no annotations, or they lack a class of the model.
    """
    with_masks = 'masks' in runner.metadata.outputs
    found = read_coco(annotations, masks=with_masks)
    for note in found.notes:
        print(f'note: {note}', file=sys.stderr)
    truth = coco_of(numbered(found.content)[0])
    if not truth.anns:
        raise UserError(f'{annotations} has no annotations of objects')
    categories = {each['name']: key for key, each in truth.cats.items()}
    classes = runner.metadata.classes or []
    missing = set(classes) - set(categories)
    if missing or not classes:
        raise UserError(
            f'{annotations} must have the classes of the file, {classes}, got '
            f'{sorted(categories)}'
        )
    found = {
        key: runner(images / image['file_name']).to_coco(key, categories)
        for key, image in truth.imgs.items()
    }
    chosen = [categories[name] for name in classes]
    return average_precision(truth, found, chosen, with_masks)


def evaluate_segmentor(
    runner: Runner, annotations: Path, images: Path, reduce_zero_label: bool = False
) -> dict:
    """Return mIoU and aAcc in percent.

    Classes that occur neither in the labels nor in the predictions are left out. Pixels
    of the label 255 are ignored.

    Raises:
        ValueError: the file has no class names, an image is missing, or labels have
            another size than their image or no class.
    """
    if not runner.metadata.classes:
        raise UserError('the file has no names of classes, which must be counted')
    classes = len(runner.metadata.classes)
    paths = {path.stem: path for path in sorted(images.iterdir())}
    counts = np.zeros((classes, classes), np.int64)  # (label, prediction)
    for path in sorted(annotations.glob('*.png')):
        if path.stem not in paths:
            raise UserError(f'{images} has no image for {path}')
        labels = read_labels(path).astype(np.int64)
        if reduce_zero_label:
            labels = np.where(np.isin(labels, (0, IGNORED)), IGNORED, labels - 1)
        found = runner(paths[path.stem]).labels
        if found.shape != labels.shape:
            raise UserError(
                f'{path} has the size {labels.shape}, and its image {found.shape}'
            )
        try:
            counts += confusion(labels, found, classes)
        except ValueError as error:
            raise UserError(f'{path} and its prediction have {error}') from error
    if not counts.any():
        raise UserError(f'{annotations} has no labels to compare with')
    return overlap(counts)


def evaluate(
    file: Path,
    annotations: Path,
    images: Path,
    reduce_zero_label: bool = False,
    trust_checkpoint: bool = False,
) -> dict:
    """Return the metrics of an exported file by name.

    Raises:
        ValueError: the file is no detector and no segmentor, or the data do not fit it.
    """
    runner = load(file, trust_checkpoint=trust_checkpoint)
    task = runner.metadata.task
    if task == 'detection':
        return evaluate_detector(runner, annotations, images)
    if task == 'segmentation':
        return evaluate_segmentor(runner, annotations, images, reduce_zero_label)
    raise UserError(f'{file} must be a detector or a segmentor, got {task}')


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('file', type=Path, help='exported .onnx, .pt2 or .xml file')
    parser.add_argument(
        'annotations', type=Path, help='json of COCO, or folder of label maps'
    )
    parser.add_argument('images', type=Path, help='folder of images')
    parser.add_argument(
        '--reduce-zero-label',
        action='store_true',
        help='ignore the label 0 and count the others from it, as for ADE20K',
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='let a .pt2 file run the code that it contains',
    )
    args = parser.parse_args(argv)
    metrics = evaluate(**vars(args))
    print(json.dumps(metrics))


if __name__ == '__main__':
    run_main(main)
