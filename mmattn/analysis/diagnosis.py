"""Name what may keep the metrics of a training low, from its data and its results.

Each check looks for one fault and says what it has seen. A check that does not apply,
such as one of boxes for a classifier, says nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from mmengine.config import Config
from scipy.optimize import linear_sum_assignment

from mmattn.errors import UserError

from ..data.coco_json import read_coco
from ..data.image_files import IMAGE_SUFFIXES
from ..data.inputs import MEAN, STD
from ..data.layouts.leaks import content_of, shared
from ..files.config_files import innermost_dataset
from ..images import read_image
from ..models.limits import detection_limits
from ..results import SCORE, Detections, Segmentation
from ..results.matching import match, overlaps
from .samples import IGNORED, Sample

FEWEST = 20  # objects or images that a statement needs
CONFIDENT = 0.6  # score of a detection that is hardly by chance
ELSEWHERE = 0.1  # IoU below which a detection is at no object
UNLABELED = 0.3  # share of the confident detections that are at no object
AT_BORDER = 0.6  # share of boxes that end at the right or the lower border
SMALL_SIDE, SMALL_SHARE = 8, 0.3  # pixels that the model sees, and share of the objects
COLORS = 30  # images whose colors are compared
DISTINCT = 8  # levels of gray by which red and blue must differ
DIVERGES = 1.5  # times, by which the loss is above its lowest
WRONG = 'wrong annotations'
OTHER_MEAN, OTHER_STD = 20, 1.3  # levels, and a factor, of another normalization


@dataclass(frozen=True)
class Finding:
    """A possible cause.

    Attributes:
        cause: its name.
        text: what was seen, and what to do.
    """

    cause: str
    text: str

    def __str__(self) -> str:
        return f'{self.cause}: {self.text}'


def diagnose(
    cfg: Config, samples: Sequence[Sample] = (), records: Sequence[dict] = ()
) -> list[Finding]:
    """Return the faults that data, results and log of a training point to.

    Args:
        cfg: config of the training.
        samples: predictions of images to validate on.
        records: of the log, with `step` and `loss`.

    Returns:
        One for each fault; none where nothing is conspicuous.
    """
    splits = {key: _Split(cfg, f'{key}_dataloader') for key in ('train', 'val')}
    found = [
        *_boxes(splits),
        *_leaks(splits),
        *_colors(cfg, splits),
        *_sizes(cfg, splits['val']),
        *_limits(cfg, splits['val']),
        *_normalization(cfg),
        *_losses(records),
        *_classes(samples),
    ]
    if not any(each.cause == WRONG for each in found):
        found += _unlabeled(samples)
    return found


class _Split:
    """The files and the objects of a data set; a `fault` where they cannot be meant."""

    def __init__(self, cfg: Config, key: str):
        dataset = innermost_dataset(cfg.get(key))
        self.pipeline = dataset.get('pipeline') or ()
        root = Path(dataset.get('data_root') or '')
        prefix = dataset.get('data_prefix') or ''
        if not isinstance(prefix, str):
            prefix = prefix.get('img') or prefix.get('img_path') or ''
        folder = root / prefix
        file = root / (dataset.get('ann_file') or '')
        self.sizes, self.boxes, self.files, self.fault = {}, [], [], None
        if file.suffix == '.json' and file.is_file():
            try:
                content, _ = read_coco(file)
            except UserError as error:
                self.fault = str(error)
                return
            for image in content['images']:
                self.sizes[image['id']] = image['width'], image['height']
                self.files.append(folder / image['file_name'])
            for entry in content['annotations']:
                if not entry['iscrowd']:
                    self.boxes.append((entry['image_id'], *entry['bbox']))
        elif file.suffix == '.txt' and file.is_file():
            lines = file.read_text().splitlines()
            self.files = [folder / line.rpartition(' ')[0] for line in lines]
        elif dataset and folder.is_dir():
            self.files = sorted(folder.rglob('*'))
        self.files = [
            path
            for path in self.files
            if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()
        ]

    def table(self) -> np.ndarray:
        """Return x, y, width, height of boxes, and width, height of images: (n, 6)."""
        known = [(*box, *self.sizes[i]) for i, *box in self.boxes if i in self.sizes]
        return np.array(known, float).reshape(-1, 6)


def _boxes(splits: dict[str, _Split]) -> Iterator[Finding]:
    for key, split in splits.items():
        if split.fault:
            yield Finding(WRONG, split.fault)
        x, y, w, h, width, height = split.table().T
        ends = (x + w >= width - 1) & (x > 1) | (y + h >= height - 1) & (y > 1)
        if len(x) >= FEWEST and ends.mean() > AT_BORDER:
            yield Finding(
                WRONG,
                f'{ends.mean():.0%} of the boxes of {key} end at the right or lower '
                'border of their image; they seem to be x1, y1, x2, y2: COCO has x, '
                'y, width, height',
            )


def _leaks(splits: dict[str, _Split]) -> Iterator[Finding]:
    items = {
        key: [SimpleNamespace(path=path) for path in split.files]
        for key, split in splits.items()
    }
    pairs = shared(items, content_of(items))
    if pairs:
        yield Finding(
            'leaked split',
            f'{len(pairs)} images of val are also in train, such as '
            f'{pairs[0][1].path}: the metrics are too good',
        )


def _colors(cfg: Config, splits: dict[str, _Split]) -> Iterator[Finding]:
    if not all(_loads_bgr(split.pipeline) for split in splits.values()):
        return  # images of other channels
    means = {}
    for key, split in splits.items():
        step = max(1, len(split.files) // COLORS)
        means[key] = [read_image(p).mean((0, 1)) for p in split.files[::step][:COLORS]]
    if all(means.values()):
        train, val = (np.mean(means[key], 0) for key in ('train', 'val'))
        same, swapped = np.abs(train - val).max(), np.abs(train - val[::-1]).max()
        if abs(train[0] - train[2]) > DISTINCT and swapped < min(same, DISTINCT) / 2:
            yield Finding(
                'swapped channels',
                f'the mean color of val is {_levels(val)} and of train {_levels(train)}'
                ': red and blue are exchanged in one of them',
            )
    given = _preprocessor(cfg)
    to_rgb = given.get('bgr_to_rgb', given.get('to_rgb'))
    if _start(cfg) and to_rgb is False and _loads_bgr(splits['val'].pipeline):
        yield Finding(
            'swapped channels',
            'images are loaded as BGR and stay so, but the weights of '
            f'{_start(cfg)} have seen RGB: set bgr_to_rgb=True (to_rgb of a '
            'classifier) in the data_preprocessor',
        )


def _loads_bgr(pipeline: Sequence[dict]) -> bool:
    return any(step['type'] == 'LoadImageFromFile' for step in pipeline)


def _levels(color: np.ndarray) -> str:
    return f'({", ".join(f"{value:.0f}" for value in color)})'


def _resize(pipeline: Sequence[dict], size: np.ndarray) -> np.ndarray:
    """Return the factors by which images of sizes (n, 2), width and height, grow."""
    for step in pipeline:
        if step['type'] != 'Resize':
            continue
        if step.get('scale_factor') is not None:
            return np.full(len(size), np.mean(step['scale_factor']))
        if step.get('scale') is not None:
            long, short = max(step['scale']), min(step['scale'])
            return np.minimum(long / size.max(1), short / size.min(1))
    return np.ones(len(size))


def _sizes(cfg: Config, split: _Split) -> Iterator[Finding]:
    table = split.table()
    if len(table) < FEWEST:
        return
    sides = np.sqrt(np.clip(table[:, 2] * table[:, 3], 0, None))
    sides *= _resize(split.pipeline, table[:, 4:])
    small = (sides < SMALL_SIDE).mean()
    if small > SMALL_SHARE:
        yield Finding(
            'objects too small',
            f'{small:.0%} of the objects have sides of less than {SMALL_SIDE} pixels '
            f'as the model sees them, the median {np.median(sides):.0f}: cut images '
            'into tiles, or enlarge them (`factor` of a converted config)',
        )


def _limits(cfg: Config, split: _Split) -> Iterator[Finding]:
    most = max(Counter(image for image, *_ in split.boxes).values(), default=0)
    reached = {k: v for k, v in detection_limits(cfg.model).items() if v < most}
    if reached:
        text = ', '.join(f'{key} is {value}' for key, value in reached.items())
        yield Finding(
            'limit reached',
            f'an image of val has {most} objects, but {text}: the rest is cut off',
        )


def _preprocessor(cfg: Config) -> dict:
    return {
        **(cfg.get('data_preprocessor') or {}),
        **(cfg.model.get('data_preprocessor') or {}),
    }


def _start(cfg: Config) -> str | None:
    """Return the published weights that the backbone starts from."""
    given = (cfg.model.get('backbone') or {}).get('init_cfg') or {}
    given = given[0] if isinstance(given, list | tuple) else given
    return given.get('checkpoint')


def _expected(start: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the deviation that published weights were trained with."""
    if start.startswith('timm://'):
        import timm

        cfg = timm.get_pretrained_cfg(start.removeprefix('timm://'))
        if cfg is not None:
            return 255 * np.array(cfg.mean), 255 * np.array(cfg.std)
    return np.array(MEAN), np.array(STD)


def _normalization(cfg: Config) -> Iterator[Finding]:
    start, given = _start(cfg), _preprocessor(cfg)
    mean, std = given.get('mean'), given.get('std')
    if start is None or mean is None or std is None or len(mean) != len(MEAN):
        return
    expected = _expected(start)
    factor = np.maximum(expected[1] / std, std / expected[1]).max()
    if np.abs(expected[0] - mean).max() > OTHER_MEAN or factor > OTHER_STD:
        yield Finding(
            'normalization of another start',
            f'data_preprocessor has mean={list(mean)} and std={list(std)}, but {start} '
            f'was trained with mean={expected[0].round(2).tolist()} and '
            f'std={expected[1].round(2).tolist()}',
        )


def _losses(records: Sequence[dict]) -> Iterator[Finding]:
    losses = [r['loss'] for r in records if 'loss' in r]
    rates = [r['lr'] for r in records if 'lr' in r]
    rate = f' with a learning rate of {max(rates):g}' if rates else ''
    cause, remedy = 'learning rate too high', 'try a third of it, or a longer warm-up'
    if any(not math.isfinite(loss) for loss in losses):
        yield Finding(cause, f'the loss is no number{rate}: {remedy}')
    elif len(losses) >= FEWEST:
        part = len(losses) // 5
        means = [
            np.median(losses[i : i + part])
            for i in range(0, len(losses) - part + 1, part)
        ]
        if means[-1] > DIVERGES * min(means) or min(means[1:]) > means[0]:
            yield Finding(
                cause,
                f'the loss began at {means[0]:.3g}, fell to {min(means):.3g} and is '
                f'{means[-1]:.3g} at the end{rate}: {remedy}',
            )


def _pairs(sample: Sample) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield labels and predictions of what is at one place."""
    truth, found = sample.truth, sample.found
    if isinstance(found, Detections):
        found = found.above(SCORE)
        pairs = match(found.boxes, truth.boxes).items()
        pairs = np.array([*pairs], int).reshape(-1, 2)
        yield truth.labels[pairs[:, 1]], found.labels[pairs[:, 0]]
    elif isinstance(found, Segmentation):
        known = truth.labels != IGNORED
        yield truth.labels[known], found.labels[known]
    else:
        yield np.array([truth.label]), np.array([found.label])


def _classes(samples: Sequence[Sample]) -> Iterator[Finding]:
    """Find classes that are exchanged as a whole."""
    classes = next((s.found.classes for s in samples if s.found.classes), None) or []
    count = len(classes)
    table = np.zeros((count, count), np.int64)
    for sample in samples if count > 1 else ():
        for truth, found in _pairs(sample):
            inside = (truth < count) & (found < count)
            index = truth[inside].astype(np.int64) * count + found[inside]
            table += np.bincount(index, minlength=count**2).reshape(count, count)
    if table.sum() < FEWEST:
        return
    rows, columns = linear_sum_assignment(-table)
    best, own = table[rows, columns].sum(), np.trace(table)
    if best < 0.5 * table.sum() or own > 0.5 * best:
        return
    seen = [(i, j) for i, j in zip(rows, columns, strict=True) if table[i, j] > 0]
    names = ', '.join(
        f'{classes[i]} is predicted as {classes[j]}' for i, j in seen[:3] if i != j
    )
    steps = {(j - i) % count for i, j in seen}
    if len(steps) == 1:
        yield Finding(
            'shifted category ids',
            f'{names}: the labels are shifted by {steps.pop()} against the training',
        )
    else:
        yield Finding(
            'class order',
            f'{names}: val has the classes in another order than train',
        )


def _unlabeled(samples: Sequence[Sample]) -> Iterator[Finding]:
    """Find confident detections where no object is labeled."""
    confident = elsewhere = 0
    for sample in samples:
        if isinstance(sample.found, Detections):
            boxes = sample.found.above(CONFIDENT).boxes
            table = overlaps(boxes, sample.truth.boxes)
            confident += len(boxes)
            elsewhere += int((table.max(1, initial=0) < ELSEWHERE).sum())
    if confident >= FEWEST and elsewhere > UNLABELED * confident:
        yield Finding(
            'missing labels',
            f'{elsewhere} of {confident} detections with a score of at least '
            f'{CONFIDENT} are where nothing is labeled: look at the worst images',
        )
