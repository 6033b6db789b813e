"""Time one training step of a detector, from data to optimizer, beside its peers'.

    python -m tools.benchmark.train_step --csv docs/benchmarks/train_step_cpu.csv

A peer is the same detector with the backbone of another config: Mask R-CNN with IViT-T
beside Swin-T and ResNet-50 of mmdetection and H-MaiT-T. Heads, losses, optimizer and
data are those of our config. The images are drawn by `tools.datasets.toy` and resized
to one size. Weights are random. All take turns in one run (see `measure.py`), on the
same images in the same order and from the same random seed.

`data_ms` is the time to load a batch in the training process, which the workers of a
real run hide; the toy files are small, so it is less than with COCO. `step_ms` is the
lower median of all steps, and the phases belong to that step.
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter

from mmengine.config import Config, ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmengine.runner.utils import set_random_seed

from mmattn.analysis.flops import build
from mmattn.apis.find import read_config
from mmattn.cli.terminal import positive, run_main
from tools.benchmark import measure
from tools.datasets.toy import make_coco

CONFIG = measure.ROOT / 'configs/mask_rcnn/ivit_t_3x_coco.py'
PEERS = [
    'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py',
    'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    str(measure.ROOT / 'configs/mask_rcnn/hmait_t_3x_coco.py'),
]
BASELINE = Path(PEERS[0]).stem
PHASES = ('data', 'forward', 'backward', 'optimizer')
NUM_IMAGES = 12
QUICK_SIZE = 64


def amended(cfg: Config, folder: str, size: tuple[int, int], batch: int) -> Config:
    """Return the config with images of one size from `folder`, without workers."""
    cfg.train_dataloader.update(
        batch_size=batch,
        num_workers=0,
        persistent_workers=False,
        sampler=dict(type='InfiniteSampler', shuffle=False),
        batch_sampler=None,
    )
    cfg.train_dataloader.dataset.update(
        data_root=str(Path(folder, 'coco')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='Resize', scale=size[::-1], keep_ratio=False),
            dict(type='PackDetInputs'),
        ],
    )
    return cfg


def with_backbone_of(peer: str, cfg: Config) -> Config:
    """Return a config with the backbone of another one."""
    other, cfg = read_config(peer).model, cfg.copy()
    neck = dict(cfg.model.neck, in_channels=other.neck.in_channels)
    cfg.model = ConfigDict(cfg.model, backbone=other.backbone, neck=neck)
    return cfg


class Training:
    """A detector with its optimizer and its batches."""

    def __init__(self, cfg: Config, device: str):
        self.device = device
        set_random_seed(0)
        self.model = build(cfg, device='cpu')
        self.model.init_weights()
        self.model.to(device).train()
        self.optim_wrapper = build_optim_wrapper(self.model, cfg.optim_wrapper)
        self.batches = iter(Runner.build_dataloader(cfg.train_dataloader, seed=0))

    def step(self) -> list[float]:
        """Take one step, and return the seconds of each of `PHASES`."""
        marks = []

        def mark():
            measure.synchronize(self.device)
            marks.append(perf_counter())

        mark()
        data = next(self.batches)
        mark()
        with self.optim_wrapper.optim_context(self.model):
            data = self.model.data_preprocessor(data, True)
            loss, _ = self.model.parse_losses(self.model(**data, mode='loss'))
        mark()
        self.optim_wrapper.backward(loss)
        mark()
        self.optim_wrapper.step()
        self.optim_wrapper.zero_grad()
        mark()
        return [end - start for start, end in pairwise(marks)]


def rows(args: argparse.Namespace, cfgs: dict[str, Config]) -> Iterator[dict]:
    trainings = {name: Training(cfg, args.device) for name, cfg in cfgs.items()}
    for name, training in trainings.items():
        measure.progress(f'{name}, first step')
        training.step()
    taken = {name: [] for name in trainings}
    for name in measure.in_turns(trainings, args.rounds):
        steps = taken[name]
        set_random_seed(len(steps))
        steps.append(trainings[name].step())
        measure.progress(f'{name}, step {len(steps)}: {sum(steps[-1]):.2f} s')
    # The phases of the median step, which add up to its length.
    median = (args.rounds - 1) // 2
    typical = {name: sorted(steps, key=sum)[median] for name, steps in taken.items()}
    baseline = sum(typical[BASELINE])
    for name, training in trainings.items():
        step = sum(typical[name])
        spread = measure.Timing([sum(phases) for phases in taken[name]]).spread
        peak = measure.peak_memory(training.step, args.device)
        parameters = sum(p.numel() for p in training.model.parameters())
        yield {
            'config': name,
            **{
                f'{phase}_ms': measure.rounded(1e3 * seconds)
                for phase, seconds in zip(PHASES, typical[name], strict=True)
            },
            'step_ms': measure.rounded(1e3 * step),
            'spread_percent': measure.rounded(100 * spread, 2),
            'speedup': measure.rounded(baseline / step, 3),
            'peak_mib': measure.rounded(peak / measure.MIB),
            'params_m': measure.rounded(parameters / 1e6),
        }


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, rounds=5)
    measure.add_size(parser, [640])
    parser.add_argument('--batch', type=positive, default=2)
    args = measure.parse(parser, argv)
    if args.quick:
        args.size, args.batch = (QUICK_SIZE, QUICK_SIZE), 1
    with tempfile.TemporaryDirectory() as folder:
        make_coco(Path(folder, 'coco'), num_images=NUM_IMAGES)
        cfg = amended(Config.fromfile(CONFIG), folder, args.size, args.batch)
        init_default_scope(cfg.default_scope)
        cfgs = {CONFIG.stem: cfg}
        for peer in PEERS:
            cfgs[Path(peer).stem] = with_backbone_of(peer, cfg)
        measure.report(
            rows(args, cfgs),
            args,
            'mmdet',
            title='Training steps',
            size=measure.size_text(args.size),
            batch=args.batch,
            dtype='float32',
            baseline=BASELINE,
        )
    return 0


if __name__ == '__main__':
    run_main(main)
