"""Evaluate whole images that the model sees tile by tile."""

import argparse

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData

from mmattn.errors import UserError

from ..apis.predictor import Predictor
from ..images import tile_boxes
from ..results import Detections, Segmentation

OF_CONFIG = 'config'  # --tile without a side


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


class TiledTest:
    """Predict test images tile by tile in place of a runner's model.

    Args:
        cfg: config of the test.
        args: with `checkpoint`, `tile`, `overlap` and what contradicts them.

    Raises:
        ValueError: side or overlap is out of range, or another option contradicts.
    """

    def __init__(self, cfg: Config, args: argparse.Namespace):
        for option in ('tta', 'amp', 'show', 'show_dir'):
            if getattr(args, option):
                flag = option.replace('_', '-')
                raise UserError(f'--tile does not support --{flag}')
        side = cfg.get('tile') if args.tile == OF_CONFIG else args.tile
        if side is None:
            raise UserError('--tile needs a side, as the config has no `tile`')
        if not str(side).isdecimal():
            raise UserError(f'--tile must be a number of pixels, got {side!r}')
        overlap = cfg.get('overlap', 0.2) if args.overlap is None else args.overlap
        self.cut = dict(tile=int(side), overlap=overlap)
        tile_boxes((1, 1), **self.cut)  # checks both
        self.predictor = Predictor(
            cfg.copy(),
            args.checkpoint,
            trust_checkpoint=cfg.get('trust_checkpoint', False),
        )
        if self.predictor.task == 'classification':
            raise UserError('--tile is for detection and segmentation')
        has_tiles = 'tile' in cfg and cfg.get('val_dataloader') != cfg.test_dataloader
        self.validates = has_tiles and cfg.get('val_cfg') is not None

    def __call__(self, runner: Runner) -> dict[str, float]:
        """Return the figures of whole images, and print the figures of tiles too."""
        runner.model.test_step = self._step
        for metric in runner.test_evaluator.metrics:
            if hasattr(metric, 'limits'):
                metric.limits = {}  # a tile has them, not an image
        text = '--tile: tiles of {tile} pixels, overlap {overlap}'.format(**self.cut)
        print_log(text, 'current')
        metrics = runner.test()
        if self.validates:
            on_tiles = runner.val()
            shown = [key for key in metrics if key in on_tiles]
            width = max(map(len, shown), default=0)
            lines = [f'{"":<{width}}  whole images  validation tiles']
            lines += [
                f'{key:<{width}}  {metrics[key]:>12.3f}  {on_tiles[key]:>16.3f}'
                for key in shown
            ]
            print_log('\n'.join(lines), 'current')
        return metrics

    def _step(self, batch: dict) -> list:
        """Do what `test_step` of a model does."""
        return [
            with_result(sample, self.predictor(sample.img_path, **self.cut))
            for sample in batch['data_samples']
        ]


def with_result(sample, found: Detections | Segmentation):
    """Return a data sample of mmdet or mmseg with a prediction."""
    if isinstance(found, Segmentation):
        labels = torch.from_numpy(found.labels.astype('int64'))
        sample.pred_sem_seg = PixelData(data=labels[None])
        return sample
    masks = {}
    if found.masks is not None:
        masks = dict(masks=[entry['segmentation'] for entry in found.to_coco()])
    sample.pred_instances = InstanceData(
        bboxes=torch.from_numpy(found.boxes),
        scores=torch.from_numpy(found.scores),
        labels=torch.from_numpy(found.labels),
        **masks,
    )
    return sample
