"""Evaluate a checkpoint with the test set and metrics of its config."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mmattn.errors import UserError

from .launch import build_runner, load_config, make_parser
from .terminal import parse_run, positive

if TYPE_CHECKING:  # --help need not wait for these
    from mmengine.config import Config

PREDICTION_SUFFIXES = ('.pkl', '.pickle')
METRICS_SUFFIXES = ('.json', '.yaml', '.yml', *PREDICTION_SUFFIXES)
OF_CONFIG = 'config'  # --tile without a side


def parse_args(argv: list[str] | None = None):
    parser = make_parser(__doc__, with_checkpoint=True)
    parser.add_argument(
        '--out',
        help='.pkl file of the predictions; for segmentation also a folder, which gets '
        'one .png of labels for each image. See --out-item',
    )
    parser.add_argument(
        '--out-item',
        choices=['pred', 'metrics'],
        help='what --out gets (default: pred); metrics go to .json, .yaml or .pkl',
    )
    parser.add_argument('--show', action='store_true', help='show the predictions')
    parser.add_argument(
        '--show-dir',
        help='folder for drawn predictions: <work dir>/<time>/SHOW_DIR for detection, '
        'SHOW_DIR/vis_data/vis_image for segmentation, SHOW_DIR for classification',
    )
    parser.add_argument(
        '--interval',
        type=positive,
        default=1,
        help='draw every n-th image; only classification can leave images out',
    )
    parser.add_argument(
        '--wait-time', type=float, default=2, help='seconds each image is shown'
    )
    parser.add_argument(
        '--tta',
        action='store_true',
        help='test-time augmentation: `tta_model` and `tta_pipeline` of the config, '
        'else a flip for detection (boxes only, no masks) and classification',
    )
    parser.add_argument(
        '--amp',
        action='store_true',
        help='evaluate under autocast: float16 on a GPU, bfloat16 on a CPU',
    )
    add_tile_options(parser)
    parser.add_argument(
        '--per-class',
        action='store_true',
        help='print the figures of each class, write them to results.json in the work '
        'dir, and draw precision_recall.png of a detector',
    )
    parser.add_argument(
        '--confusion',
        action='store_true',
        help='draw confusion_matrix.png in the work dir, and write its counts to '
        'results.json',
    )
    args = parse_run(parser, argv)
    if args.out_item is not None and args.out is None:
        parser.error('--out-item needs --out, the file to write')
    return args


def add_tile_options(parser: argparse.ArgumentParser):
    parser.add_argument(
        '--tile',
        nargs='?',
        const=OF_CONFIG,
        metavar='SIDE',
        help='cut the test images into tiles of this side, and merge what is found as '
        '`mmattn predict --tile` does; the side defaults to `tile` of the config. '
        'Validation images that are tiles are evaluated, too',
    )
    parser.add_argument(
        '--overlap',
        type=float,
        help='share of a tile in common with the next (default: `overlap` of the '
        'config, else 0.2)',
    )


def check_out(out: str, item: str | None, scope: str):
    suffix = Path(out).suffix
    if item == 'metrics':
        if suffix not in METRICS_SUFFIXES:
            raise UserError(f'--out must end in one of {METRICS_SUFFIXES}, got {out}')
    elif suffix not in PREDICTION_SUFFIXES and (suffix or scope != 'mmseg'):
        raise UserError(
            f'--out must end in .pkl or .pickle or, for mmseg, be a folder; got {out}'
        )


def save_label_maps(cfg: 'Config', folder: str):
    from .evaluation_results import COUNTS, each_metric

    for metric in each_metric(cfg.test_evaluator):
        if metric.type not in COUNTS:
            metric.output_dir = folder


def dump_metric(scope: str, path: str):
    if scope == 'mmdet':
        from mmdet.evaluation import DumpDetResults as Dump
    else:
        from mmengine.evaluator import DumpResults as Dump
    return Dump(out_file_path=path)


def draw_predictions(
    cfg: 'Config', show: bool, show_dir: str | None, interval: int, wait_time: float
):
    """Enable the visualization hook, whose arguments differ between the packages."""
    if 'visualization' not in cfg.get('default_hooks', {}):
        raise UserError('drawing requires a `visualization` hook in default_hooks')
    hook = cfg.default_hooks.visualization
    if cfg.default_scope == 'mmpretrain':
        hook.update(enable=True, out_dir=show_dir, interval=interval)
    elif interval != 1:
        raise UserError(
            f'--interval {interval}: the test hook of {cfg.default_scope} draws every '
            'image'
        )
    else:
        hook.draw = True
        if cfg.default_scope == 'mmdet':
            hook.test_out_dir = show_dir
        elif show_dir is not None:
            cfg.visualizer.save_dir = show_dir
    if show:
        hook.update(show=True, wait_time=wait_time)


def use_autocast(cfg: 'Config'):
    from mmengine.device import is_cuda_available

    if cfg.default_scope == 'mmdet' and not is_cuda_available():
        raise UserError(
            "--amp uses bfloat16 on a CPU, which mmdet's metrics do not support"
        )
    cfg.test_cfg.fp16 = True


def main(argv: list[str] | None = None):
    args = parse_args(argv)
    from mmengine.dist import is_main_process
    from mmengine.fileio import dump
    from mmengine.logging import print_log

    from .augmented_test import BoxesOnlyHook, augment_at_test_time
    from .evaluation_results import counting_metric, use_our_metric, write_results
    from .tiled_test import compare_with_tiles, use_tiles

    cfg = load_config(args, dataloader='test_dataloader')
    cfg.load_from = args.checkpoint
    if args.tile is not None:
        use_tiles(cfg, args)
    if args.out is not None:
        check_out(args.out, args.out_item, cfg.default_scope)
    if args.show or args.show_dir:
        draw_predictions(cfg, args.show, args.show_dir, args.interval, args.wait_time)
    if args.tta:
        augment_at_test_time(cfg)
    if args.amp:
        use_autocast(cfg)
    dumps_predictions = args.out is not None and args.out_item != 'metrics'
    if dumps_predictions and not Path(args.out).suffix:
        save_label_maps(cfg, args.out)
        dumps_predictions = False
    detailed = args.per_class or args.confusion
    if detailed and cfg.default_scope == 'mmdet':
        use_our_metric(cfg)
    runner = build_runner(cfg)
    metric = counting_metric(runner) if detailed else None
    if args.tta and cfg.default_scope == 'mmdet':
        runner.register_hook(BoxesOnlyHook())
    if dumps_predictions:
        runner.test_evaluator.metrics.append(dump_metric(cfg.default_scope, args.out))
    started = time.monotonic()
    metrics = runner.test()
    if args.tile is not None:
        compare_with_tiles(runner, metrics)
    if is_main_process():
        results = write_results(
            runner,
            metrics,
            started,
            metric=metric,
            per_class=args.per_class,
            confusion=args.confusion,
        )
        print_log(f'results: {results}', 'current')
    if args.out_item == 'metrics' and is_main_process():
        dump(metrics, args.out)
