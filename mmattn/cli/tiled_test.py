"""Evaluate whole images that the model sees tile by tile."""

import argparse
from collections.abc import Mapping

import torch
from mmengine.config import Config
from mmengine.runner import Runner, TestLoop
from mmengine.structures import InstanceData, PixelData

from mmattn.errors import UserError

from ..apis.predictor import Predictor
from ..images import tile_boxes
from ..results import Detections, Segmentation
from .test import OF_CONFIG


def use_tiles(cfg: Config, args: argparse.Namespace):
    """Let a config test whole images tile by tile.

    Raises:
        ValueError: side or overlap is out of range, or another option contradicts.
    """
    for option in ('tta', 'amp', 'show', 'show_dir'):
        if getattr(args, option):
            flag = option.replace('_', '-')
            raise UserError(f'--tile does not support --{flag}')
    side = cfg.get('tile') if args.tile == OF_CONFIG else args.tile
    if side is None:
        raise UserError('--tile needs a side, as the config has no `tile`')
    if not str(side).isdecimal():
        raise UserError(f'--tile must be a number of pixels, got {side!r}')
    if cfg.default_scope == 'mmpretrain':
        raise UserError('--tile is for detection and segmentation')
    overlap = cfg.get('overlap', 0.2) if args.overlap is None else args.overlap
    cut = dict(tile=int(side), overlap=overlap)
    tile_boxes((1, 1), **cut)  # checks both
    cfg.test_cfg = dict(type=f'{__name__}.{TiledTestLoop.__name__}', **cut)


class TiledTestLoop(TestLoop):
    """Predict each test image tile by tile, with the weights of `load_from`.

    Args:
        tile: side of a tile in pixels.
        overlap: share of a tile in common with the next.
    """

    def __init__(
        self, runner: Runner, dataloader, evaluator, tile: int, overlap: float
    ):
        super().__init__(runner, dataloader, evaluator)
        for metric in self.evaluator.metrics:
            if hasattr(metric, 'limits'):
                metric.limits = {}  # a tile has them, not an image
        self.cut = dict(tile=tile, overlap=overlap)
        self.predictor = Predictor(
            runner.cfg.copy(),
            runner.cfg.load_from,
            device=str(next(runner.model.parameters()).device),
            trust_checkpoint=runner.cfg.get('trust_checkpoint', False),
        )
        runner.logger.info(f'--tile: tiles of {tile} pixels, overlap {overlap}')

    def run_iter(self, idx: int, data_batch: dict):
        step = dict(batch_idx=idx, data_batch=data_batch)
        self.runner.call_hook('before_test_iter', **step)
        outputs = [
            with_result(sample, self.predictor(sample.img_path, **self.cut))
            for sample in data_batch['data_samples']
        ]
        self.evaluator.process(outputs, data_batch)
        self.runner.call_hook('after_test_iter', **step, outputs=outputs)


def compare_with_tiles(runner: Runner, metrics: Mapping[str, float]):
    """Print the figures of whole images beside those of validation images, if tiles."""
    cfg = runner.cfg
    same = cfg.get('val_dataloader') == cfg.test_dataloader
    if 'tile' not in cfg or cfg.get('val_cfg') is None or same:
        return
    on_tiles = runner.val()
    shown = [key for key in metrics if key in on_tiles]
    width = max(map(len, shown), default=0)
    lines = [f'{"":<{width}}  whole images  validation tiles']
    lines += [
        f'{key:<{width}}  {metrics[key]:>12.3f}  {on_tiles[key]:>16.3f}'
        for key in shown
    ]
    runner.logger.info('\n'.join(lines))


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
