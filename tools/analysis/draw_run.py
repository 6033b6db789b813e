"""Draw a run, finished or not: its curves, and predictions beside the ground truth.

    python tools/analysis/draw_run.py configs/demo/mask_rcnn_ivit_n_hela.py

reads the work dir of that config, and writes `curves.png`, `predictions.png` and
`summary.json` there. The summary holds the last metrics, the minutes that the run
took, and the machine. What a run does not have yet is left out: curves before the first
record of its log, predictions before the first checkpoint.
"""

import argparse
import json
from pathlib import Path

import matplotlib
import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, init_default_scope
from mmengine.runner import load_checkpoint

import mmattn  # noqa: F401  makes mmcv's operators available
from mmattn.analysis.sample_pictures import draw_sample, show
from mmattn.analysis.training_logs import (
    last_log,
    latest_checkpoint,
    summarize,
    work_dir_of,
)
from mmattn.errors import UserError
from mmattn.terminal import config_file, positive, run_main

matplotlib.use('Agg')
from matplotlib import pyplot as plt

MANY_TIMES = 5  # of the smallest loss, which call for a logarithmic axis
LOWEST_TOP = 0.1  # of an axis of metrics
METRICS = {'mmdet': ('coco/bbox_mAP', 'coco/segm_mAP'), 'mmseg': ('mIoU', 'aAcc')}


def draw_curves(records: list[dict], metrics: tuple[str, ...], out_file: Path):
    """Plot the loss and the metrics of a run over its iterations.

    Axes begin at 0, but for that of a loss whose largest value is many times its
    smallest, which is logarithmic.
    """
    figure, loss_axis = plt.subplots(figsize=(7, 4), layout='constrained')
    loss_axis.set(xlabel='iteration', ylabel='training loss')
    losses = [(r['step'], r['loss']) for r in records if 'loss' in r]
    if losses:
        loss_axis.plot(
            *zip(*losses, strict=True),
            color='0.5',
            marker='o' if len(losses) == 1 else None,
            label=f'training loss{_only(losses)}',
        )
        values = [loss for _, loss in losses]
        if 0 < MANY_TIMES * min(values) < max(values):
            loss_axis.set_yscale('log')
        else:
            loss_axis.set_ylim(bottom=min(0, *values), top=None)
    metric_axis = loss_axis.twinx()
    metric_axis.set(ylabel='validation metric')
    highest = LOWEST_TOP
    for metric in metrics:
        points = [(r['step'], r[metric]) for r in records if metric in r]
        if points:
            label = f'{metric.split("/")[-1]}, last {points[-1][1]:.3g}{_only(points)}'
            metric_axis.plot(*zip(*points, strict=True), marker='o', label=label)
        highest = max([highest, *(value for _, value in points)])
    metric_axis.set_ylim(bottom=0, top=1.05 * highest)
    loss_axis.set_xlim(left=0)
    figure.legend(loc='outside upper center', ncols=3)
    figure.savefig(out_file, dpi=120)
    plt.close(figure)


def _only(points: list) -> str:
    return ', one value' if len(points) == 1 else ''


@torch.no_grad()
def draw_predictions(
    cfg: Config, checkpoint: str, num_images: int, score_thr: float, out_file: Path
):
    """Draw evenly spaced validation images, each with ground truth and prediction."""
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    model = MODELS.build(cfg.model)
    load_checkpoint(model, checkpoint, map_location='cpu')
    model.eval()
    visualizer = VISUALIZERS.build(dict(type=cfg.visualizer.type, name='draw_run'))
    visualizer.dataset_meta = dataset.metainfo
    figure, axes = plt.subplots(
        num_images,
        3,
        figsize=(9, 3 * num_images),
        layout='constrained',
        squeeze=False,
        subplot_kw=dict(xticks=[], yticks=[]),
    )
    indices = np.linspace(0, len(dataset) - 1, num_images).round().astype(int)
    for row, index in zip(axes, indices, strict=True):
        data = dataset[index]
        image = mmcv.imread(data['data_samples'].img_path, channel_order='rgb')
        ground_truth = data['data_samples'].clone()
        (sample,) = model.test_step(pseudo_collate([data]))
        for name in ('gt_instances', 'gt_sem_seg'):
            if name in ground_truth:
                setattr(sample, name, getattr(ground_truth, name))
        pictures = [(image,), *draw_sample(image, sample, visualizer, score_thr)]
        for axis, picture in zip(row, pictures, strict=True):
            show(axis, *picture)
    for axis, title in zip(
        axes[0], ('image', 'ground truth', 'prediction'), strict=True
    ):
        axis.set_title(title)
    figure.savefig(out_file, dpi=120)
    plt.close(figure)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', type=config_file, help='config file of the run')
    parser.add_argument(
        '--work-dir', help="default: the config's, else work_dirs/<config name>"
    )
    parser.add_argument('--num-images', type=positive, default=4)
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.5,
        help='lowest score that is drawn',
    )
    return parser.parse_args()


def main():
    args = parse_args()
    cfg = Config.fromfile(args.config)
    init_default_scope(cfg.default_scope)
    work_dir = Path(args.work_dir or work_dir_of(args.config, cfg))
    checkpoint = latest_checkpoint(work_dir)
    records, run = last_log(work_dir)
    if checkpoint is None and not records:
        raise UserError(
            f'{work_dir} holds no run: neither a checkpoint nor a record of a log; '
            f'train first, or pass --work-dir'
        )
    metrics = METRICS.get(cfg.default_scope, ())
    drawn = []
    if records:
        summary = summarize(args.config, run, records, metrics)
        (work_dir / 'summary.json').write_text(json.dumps(summary, indent=2) + '\n')
        print(
            ', '.join(f'{name} {value}' for name, value in summary['metrics'].items())
        )
        draw_curves(records, metrics, work_dir / 'curves.png')
        drawn.append(f'curves: {work_dir / "curves.png"}')
    else:
        drawn.append('no curves: the log has no record yet')
    if checkpoint is not None:
        predictions = work_dir / 'predictions.png'
        draw_predictions(cfg, checkpoint, args.num_images, args.score_thr, predictions)
        drawn.append(f'predictions beside ground truth: {predictions}')
    else:
        drawn.append('no predictions: the run has no checkpoint yet')
    print(', '.join(drawn))


if __name__ == '__main__':
    run_main(main)
