"""Load a published file, predict photographs, and compare with what is recorded."""

import logging
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
import yaml
from mmengine.logging import MMLogger
from PIL import Image

from ..apis import Predictor
from ..errors import UserError, import_optional
from ..files import file_digest
from ..registry import MODELS
from ..results import SCORE, Classification, Detections
from ..weights.load import find_weights, load_weights
from ..weights.names import SCHEME, config_of, find_published
from ..weights.read import read_checkpoint
from ..weights.report import LoadReport
from ..weights.resolve import local_checkpoint

STATES = 'passed', 'no record', 'failed', 'skipped'
PHOTOGRAPHS = 'astronaut', 'coffee', 'chelsea'  # in the wheel of scikit-image
SIDE = 224
KEPT = 5  # classes or objects of a photograph
# Between machines and versions of Pillow.
SCORE_TOLERANCE, BOX_TOLERANCE = 0.01, 2.0

# Label and score of each object or class, followed by the box of an object.
Rows = list[list[int | float]]


@dataclass(frozen=True)
class Verdict:
    """Hold whether a file is what it should be.

    Attributes:
        state: one of `STATES`.
        reason: what was found, in a line.
        rows: by the name of the photograph, what was predicted; empty for a backbone.
    """

    state: str
    reason: str
    rows: dict[str, Rows] = field(default_factory=dict)


def photographs() -> dict[str, np.ndarray]:
    """Return the photographs by name, RGB uint8.

    Raises:
        ImportError: scikit-image is not installed.
    """
    message = 'verify requires scikit-image: pip install scikit-image'
    data = import_optional(message, 'skimage.data')
    return {name: getattr(data, name)() for name in PHOTOGRAPHS}


def verify(name: str) -> Verdict:
    """Return the verdict on a file, after downloading it if needed.

    Args:
        name: of the file, without `mmattn://`.

    Raises:
        ImportError: scikit-image is not installed.
    """
    entry, images = find_published(name), photographs()
    try:
        path = local_checkpoint(SCHEME + name)
        config = config_of(entry)
        if config is None:
            _run_backbone(entry, str(path), images)
            return Verdict('no record', 'loaded; a backbone without predictions')
        predictor = Predictor(config, SCHEME + name, 'cpu')
        results = dict(zip(images, predictor([*images.values()]), strict=True))
    except ConnectionError as error:
        return Verdict('skipped', _line(error))
    except (UserError, OSError) as error:
        return Verdict('failed', _line(error))
    rows = {image: rows_of(result) for image, result in results.items()}
    if 'record' not in entry:
        found = [f'{image}: {described(result)}' for image, result in results.items()]
        return Verdict('no record', f'loaded; {"; ".join(found)}', rows)
    problems = [
        f'{image} {problem}'
        for image, recorded in entry['record'].items()
        for problem in differences(results[image], recorded)
    ]
    if problems:
        return Verdict('failed', '; '.join(problems), rows)
    return Verdict('passed', 'predictions are as recorded', rows)


def _line(error: Exception) -> str:
    return ' '.join(str(error).split())


def _run_backbone(entry: dict, path: str, images: dict[str, np.ndarray]):
    """Load a backbone and run it on the photographs.

    Raises:
        ValueError: it lacks tensors of the file's, or the file some of its own, or a
            map has a number that is not finite.
    """
    from timm.data import create_transform

    backbone = MODELS.build(dict(type=entry['type'], **entry['args'])).eval()
    weights = find_weights(read_checkpoint(path, 'cpu'), path)
    report = load_weights(backbone, weights)
    if not is_whole(report, {name for name, _ in backbone.named_children()}):
        raise UserError(f'{path} does not fit: {"; ".join(report.differences())}')
    transform = create_transform((3, SIDE, SIDE), is_training=False)
    with torch.no_grad():
        for image, pixels in images.items():
            maps = backbone(transform(Image.fromarray(pixels))[None])
            if not all(each.isfinite().all() for each in maps):
                raise UserError(f'{path} gives infinite maps of {image}')


def is_whole(report: LoadReport, parts: set[str]) -> bool:
    """Return whether a backbone has all of its tensors from a file, and the file's too.

    Norms of output maps may be new, and heads in the file are left over.
    """
    new = [name for name in report.missing if name.startswith('out_norms.')]
    left = [name for name in report.unexpected if name.partition('.')[0] in parts]
    return new == report.missing and not report.mismatched and not left


def rows_of(result: Classification | Detections) -> Rows:
    """Return the best classes or objects."""
    if isinstance(result, Classification):
        best = np.argsort(-result.scores, kind='stable')[:KEPT]
        return [[int(label), round(float(result.scores[label]), 4)] for label in best]
    objects = result.above(SCORE)[:KEPT]
    found = zip(objects.labels, objects.scores, objects.boxes, strict=True)
    return [
        [int(label), round(float(score), 4), *(round(float(x), 1) for x in box)]
        for label, score, box in found
    ]


def described(result: Classification | Detections) -> str:
    """Return the best classes or objects in words."""
    if isinstance(result, Classification):
        pairs = result.top(KEPT)
    else:
        objects = result.above(SCORE)[:KEPT]
        pairs = zip(objects.names, objects.scores, strict=True)
    return ', '.join(f'{name} {score:.2f}' for name, score in pairs) or 'nothing'


def differences(result: Classification | Detections, recorded: Rows) -> list[str]:
    """Return what is recorded and was not predicted."""
    problems = []
    for label, score, *box in recorded:
        if isinstance(result, Classification):
            near = abs(result.scores[label] - score) <= SCORE_TOLERANCE
        else:
            near = (
                (result.labels == label)
                & (abs(result.scores - score) <= SCORE_TOLERANCE)
                & (abs(result.boxes - box) <= BOX_TOLERANCE).all(1)
            ).any()
        if not near:
            where = f' in {box}' if box else ''
            problems.append(f'has no label {label} with score {score}{where}')
    if not recorded and isinstance(result, Detections):
        problems = ['has objects'] if rows_of(result) else []
    return problems


def verify_all(names: list[str], record: bool) -> int:
    """Verify files, print a line for each and the counts, and return the status."""
    counts = Counter()
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.WARNING)  # mmengine tells how it builds and loads a model
    for name in names:
        verdict = verify(name)
        counts[verdict.state] += 1
        print(f'{name}: {verdict.state}: {verdict.reason}', flush=True)
        if record and verdict.rows:
            digest = file_digest(local_checkpoint(SCHEME + name))
            entry = {name: dict(sha256=digest, record=verdict.rows)}
            print(yaml.safe_dump(entry, default_flow_style=None, sort_keys=False))
    logger.setLevel(level)
    print(', '.join(f'{counts[state]} {state}' for state in STATES))
    return int(counts['failed'] > 0)
