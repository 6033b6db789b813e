"""Measure what the sizes of COCO and ImageNet cost: time of the CPU, and memory.

    python -m tools.datasets.toy coco --out data/coco --full-size
    python -m tools.benchmark.sizes check start resume evaluation labels

Each row runs in a process of its own. The time is the CPU's, of the process and of
those that it started, which other programs disturb less. The memory is the peak of the
process above what it had after its imports; workers count what they do not share.
The rows are written to `docs/sizes.csv`, and `docs/sizes.md` gets the table. The images
of the set are small, so decoding them costs less than with photographs.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mmattn.cli.terminal import command_parser, run_main
from tools.benchmark.measure import ROOT, machine, read_csv, write_csv
from tools.dev.markdown import markdown, replace_between

DOCS = ROOT / 'docs'
MARKS = '<!-- measured -->\n', '<!-- end of measured -->'
COCO = ROOT / 'configs/mask_rcnn/ivit_t_3x_coco.py'
CLASSIFIER = ROOT / 'configs/cifar100/vit_t2_imhsa_300e_cifar100.py'
VAL = 'data/coco/annotations/instances_val2017.json'
BATCH = 50_000  # to resume at
SMALL, LABELS, CLASSES = 2_000, 50_000, 1_000
SIDE = 32  # of small images
PER_IMAGE = 100  # detections


def check(_) -> str:
    """Check the data sets of the Mask R-CNN config."""
    from mmattn.data.check import main

    with contextlib.redirect_stdout(io.StringIO()):
        main([str(COCO)])
    return 'table of both splits'


def training_loader(num_workers: int):
    """Return the loader of training that `mmattn train` builds."""
    from mmattn.cli.launch import build_runner
    from mmattn.cli.train import load_config, parse_args

    options = [
        f'train_dataloader.num_workers={num_workers}',
        f'train_dataloader.persistent_workers={num_workers > 0}',
        'model.backbone.init_cfg=None',
    ]
    folder = tempfile.mkdtemp()
    args = parse_args([str(COCO), '--work-dir', folder, '--cfg-options', *options])
    runner = build_runner(load_config(args, dataloader='train_dataloader'))
    return runner.build_dataloader(runner.cfg.train_dataloader)


def start(_) -> str:
    """Build the runner and load the first batch with two workers."""
    loader = training_loader(2)
    batches = iter(loader)
    next(batches)
    own = [unshared(int(pid)) for pid in children()]
    del batches
    images = len(loader.dataset)
    return f'two workers with {max(own)} MiB each of their own, {images:,} images'


def children() -> list[str]:
    path = f'/proc/self/task/{os.getpid()}/children'
    return Path(path).read_text().split()


def unshared(pid: int) -> int:
    """Return the memory of a process that no other one shares, in MiB."""
    lines = Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
    private = [line for line in lines if line.startswith('Private_')]
    return sum(int(line.split()[1]) for line in private) // 1024


def resume(_) -> str:
    """Take a late batch, as a resumed run does."""
    from mmattn.engine.data.loaders import positioned

    loader = training_loader(0)
    dataset = loader.dataset
    while hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    loaded, prepare = [], dataset.prepare_data
    dataset.prepare_data = lambda index: loaded.append(index) or prepare(index)
    at = min(BATCH, len(loader) - 1)
    positioned(loader).resume(at=at)
    next(iter(loader))
    images = len(loader.dataset)
    return f'{len(loaded)} samples loaded at batch {at:,}, of {images:,} images'


def results_of_val() -> list[dict]:
    """Return 100 detections for each validation image, its objects moved among them."""
    content, rng = json.loads(Path(VAL).read_text()), np.random.default_rng(0)
    ids = {each['id']: i for i, each in enumerate(content['categories'])}
    given = {each['id']: [] for each in content['images']}
    for each in content['annotations']:
        given[each['image_id']].append((*each['bbox'], ids[each['category_id']]))
    found = []
    for image in content['images']:
        boxes = rng.uniform(0, 60, (PER_IMAGE, 4))
        labels = rng.integers(0, len(ids), PER_IMAGE)
        for i, (*box, label) in enumerate(given[image['id']]):
            boxes[i], labels[i] = box + rng.normal(0, 1, 4), label
        boxes[:, 2:] = boxes[:, :2] + boxes[:, 2:].clip(1)
        scores = rng.random(PER_IMAGE)
        found.append(
            dict(img_id=image['id'], bboxes=boxes, scores=scores, labels=labels)
        )
    return found


def evaluation(_, package: str = 'mmattn') -> str:
    """Evaluate 100 boxes in each of 5,000 images."""
    from mmdet.datasets import CocoDataset
    from mmdet.evaluation import CocoMetric as Theirs

    from mmattn.evaluation import CocoMetric as Ours

    metric = (Ours if package == 'mmattn' else Theirs)(VAL, 'bbox')
    metric.dataset_meta = CocoDataset.METAINFO
    found = results_of_val()
    metric.results = [(dict(img_id=each['img_id']), each) for each in found]
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        figures = metric.compute_metrics(metric.results)
    value = next(iter(figures.values()))
    return f'{time.process_time() - began:.1f} s in the metric, mAP {value}'


def evaluation_of_mmdet(folder: Path) -> str:
    return evaluation(folder, 'mmdet')


def label_samples(count: int):
    import torch

    for i in range(count):
        yield dict(
            gt_label=torch.tensor([i % CLASSES]),
            pred_label=torch.tensor([7 * i % CLASSES]),
        )


def labels(_) -> str:
    """Count 50,000 labels of 1,000 classes, as `mmattn test --confusion` does."""
    from mmattn.evaluation import LabelConfusion

    metric = LabelConfusion()
    metric.dataset_meta = dict(classes=[*map(str, range(CLASSES))])
    for sample in label_samples(LABELS):
        metric.process({}, [sample])
    metric.evaluate(LABELS)
    return f'{int(metric.confusion.sum()):,} labels counted'


def tiles(_) -> str:
    """Merge 100 boxes of each tile of an image of 5,000 x 20,000 pixels."""
    from mmattn.apis.tiles import predict_tiles
    from mmattn.results import Detections

    rng = np.random.default_rng(0)

    def model(images, scale):
        found = []
        for image in images:
            corner = rng.uniform(0, np.array(image.shape[1::-1]) - 24, (PER_IMAGE, 2))
            boxes = np.concatenate([corner, corner + rng.uniform(8, 24)], 1)
            scores = np.sort(rng.random(PER_IMAGE).astype(np.float32))[::-1]
            labels = np.zeros(PER_IMAGE, int)
            names = ['cell'] * PER_IMAGE
            boxes = boxes.astype(np.float32)
            size = image.shape[:2]
            found.append(Detections(boxes, scores, labels, names, size=size))
        return found

    image = np.zeros((5_000, 20_000, 3), np.uint8)
    return f'{len(predict_tiles(model, image, 512)):,} objects'


def images(folder: Path) -> str:
    """Predict and draw 2,000 images of 32 x 32 pixels."""
    from PIL import Image

    from mmattn.apis import Predictor
    from mmattn.apis.writing import write_predictions

    (folder / 'images').mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    for i in range(SMALL):
        Image.fromarray(pixels).save(folder / f'images/{i:04d}.png')
    predictor = Predictor(CLASSIFIER, 'random', 'cpu')
    given = [folder / 'images']
    written = write_predictions(predictor, given, folder / 'out', batch_size=8)
    return written.partition(':')[0]


ROWS: dict[str, Callable[[Path], str]] = {
    each.__name__: each
    for each in (
        *(check, start, resume, evaluation, evaluation_of_mmdet),
        *(labels, tiles, images),
    )
}


def measure(name: str) -> dict:
    """Run a row in this process."""
    import torch

    import mmattn.apis
    import mmattn.evaluation  # noqa: F401

    def used() -> float:
        kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
        spent = [resource.getrusage(kind) for kind in kinds]
        return sum(each.ru_utime + each.ru_stime for each in spent)

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    before, seconds = peak(), used()
    with tempfile.TemporaryDirectory() as folder:
        result = ROWS[name](Path(folder))
    return dict(
        row=name,
        seconds=round(used() - seconds, 1),
        memory=peak() - before,
        result=result,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        machine=machine('cpu'),
        date=time.strftime('%Y-%m-%d'),
    )


def measure_apart(name: str) -> dict:
    """Run a row in a process of its own."""
    command = [sys.executable, '-m', 'tools.benchmark.sizes', '--row', name]
    path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    environment = os.environ | dict(PYTHONPATH=path, OMP_NUM_THREADS='1')
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    if done.returncode:
        raise RuntimeError(f'{name}: {done.stdout[-1000:]}{done.stderr[-3000:]}')
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict]) -> str:
    """Return the table of the page."""
    lines = [['what', 'CPU time, s', 'memory, MiB', 'result']]
    for row in rows:
        what = (ROWS[row['row']].__doc__ or f'The same with {row["row"][14:]}.').strip()
        lines.append([what.rstrip('.'), row['seconds'], row['memory'], row['result']])
    last = rows[-1]
    return (
        f'Measured with {last["threads"]} thread of PyTorch {last["torch"]} on '
        f'{last["machine"]}, {last["date"]}.\n\n{markdown(lines)}'
    )


def main(argv: list[str] | None = None):
    parser = command_parser(__doc__)
    parser.add_argument('rows', nargs='*', metavar='ROW', help=f'of {", ".join(ROWS)}')
    parser.add_argument('--row', help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if unknown := [name for name in args.rows if name not in ROWS]:
        parser.error(f'rows must be of {list(ROWS)}, got {unknown}')
    if args.row:
        print(json.dumps(measure(args.row)))
        return
    path = DOCS / 'sizes.csv'
    found = read_csv(path) if path.is_file() else []
    rows = {row['row']: row for row in found}
    for name in args.rows:
        rows[name] = measure_apart(name)
        print(rows[name], flush=True)
        write_csv(path, [rows[key] for key in ROWS if key in rows], {})
    replace_between(DOCS / 'sizes.md', *MARKS, table(read_csv(path)))


if __name__ == '__main__':
    run_main(main)
