"""Time one training step of a detector, from data to optimizer, beside its peers'.

    python -m tools.benchmark.train_step --csv docs/benchmarks/train_step_cpu.csv
    python -m tools.benchmark.train_step --size 800 1333 --batch 1 --rounds 3 \
        --config configs/deformable_detr/r50_50e_coco.py --whole-models \
        --peers mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py

A peer is the same detector with the backbone of another config, by default Mask R-CNN
with IViT-T beside Swin-T and ResNet-50 of mmdetection and H-MaiT-T: heads, losses,
all use the optimizer and data of our config. With --whole-models it is the other
config's whole model, and optimizer and data are ours. One with mmcv's multi-scale
deformable attention takes part twice: with mmcv's PyTorch formulation, which is what
runs where mmcv has no compiled operator, and with the operator that it has or that
`mmattn.compat` serves.

The images are drawn by `tools.datasets.toy` and resized to one size. Weights are
random. All take turns in one run (see `measure.py`), on the same images in the same
order and from the same random seed.

`data_ms` is the time to load a batch in the training process, which the workers of a
real run hide; the toy files are small, so it is less than with COCO. `step_ms` is the
lower median of all steps, and the phases belong to that step.
"""

import argparse
import importlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from unittest import mock

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


def with_model_of(peer: str, cfg: Config, whole: bool) -> Config:
    """Return a config with the model of a peer, or with its backbone only."""
    other, cfg = read_config(peer).model, cfg.copy()
    if not whole:
        neck = dict(cfg.model.neck, in_channels=other.neck.in_channels)
        other = ConfigDict(cfg.model, backbone=other.backbone, neck=neck)
    cfg.model = other
    return cfg


@contextmanager
def formulation_of_mmcv() -> Iterator[None]:
    """Use mmcv's PyTorch formulation of the attention, on GPUs as well."""
    module = importlib.import_module('mmcv.ops.multi_scale_deform_attn')
    served = module.multi_scale_deformable_attn_pytorch
    changes = dict(
        IS_CUDA_AVAILABLE=False,
        # What mmattn.compat has put in its place keeps it.
        multi_scale_deformable_attn_pytorch=getattr(served, '__wrapped__', served),
    )
    with mock.patch.multiple(module, **changes):
        yield


class Training:
    """A detector with its optimizer and its batches; it runs inside of `around()`."""

    def __init__(
        self,
        cfg: Config,
        device: str,
        around: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.device = device
        self.around = around
        set_random_seed(0)
        self.model = build(cfg, device='cpu')
        self.model.init_weights()
        self.model.to(device).train()
        self.optim_wrapper = build_optim_wrapper(self.model, cfg.optim_wrapper)
        self.batches = iter(Runner.build_dataloader(cfg.train_dataloader, seed=0))

    @property
    def has_attention_of_mmcv(self) -> bool:
        names = {type(module).__name__ for module in self.model.modules()}
        return 'MultiScaleDeformableAttention' in names

    def step(self) -> list[float]:
        """Take one step, and return the seconds of each of `PHASES`."""
        marks = []

        def mark():
            measure.synchronize(self.device)
            marks.append(perf_counter())

        with self.around():
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


def trainings_of(cfgs: dict[str, Config], device: str) -> dict[str, Training]:
    """Build the models by name, in two forms if they use mmcv's attention."""
    trainings = {}
    for name, cfg in cfgs.items():
        training = Training(cfg, device)
        if not training.has_attention_of_mmcv:
            trainings[name] = training
            continue
        from mmcv.ops import get_compiler_version

        training.around = formulation_of_mmcv
        trainings[f'{name}, mmcv in PyTorch'] = training
        served = 'provided by mmattn' in get_compiler_version()
        operator = 'mmattn.compat' if served else 'mmcv compiled'
        trainings[f'{name}, {operator}'] = Training(cfg, device)
    return trainings


def step_of_median_length(steps: list[list[float]]) -> list[float]:
    """Return the phases of the median step, which add up to its length."""
    return sorted(steps, key=sum)[(len(steps) - 1) // 2]


def rows(args: argparse.Namespace, cfgs: dict[str, Config]) -> Iterator[dict]:
    trainings = trainings_of(cfgs, args.device)
    names = list(trainings)
    for name in names:
        measure.progress(f'{name}, first step')
        trainings[name].step()
    taken = {name: [] for name in names}
    for i in measure.in_turns(len(names), args.rounds):
        set_random_seed(len(taken[names[i]]))
        taken[names[i]].append(trainings[names[i]].step())
        total = sum(taken[names[i]][-1])
        measure.progress(f'{names[i]}, step {len(taken[names[i]])}: {total:.2f} s')
    typical = {name: step_of_median_length(taken[name]) for name in names}
    baseline = sum(typical[names[1]])
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


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=5, seconds=None)
    parser.add_argument('--config', default=CONFIG, type=Path)
    parser.add_argument(
        '--peers',
        nargs='+',
        default=PEERS,
        help='configs, as paths or package::path, whose backbones are compared; the '
        'first is the baseline',
    )
    parser.add_argument(
        '--whole-models',
        action='store_true',
        help='compare the models of the peers, not only their backbones',
    )
    measure.add_size(parser, [640])
    parser.add_argument('--batch', type=positive, default=2)
    args = measure.parse(parser, argv)
    if args.quick:
        args.size, args.batch = (QUICK_SIZE, QUICK_SIZE), 1
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        make_coco(Path(folder, 'coco'), num_images=NUM_IMAGES)
        cfg = amended(Config.fromfile(args.config), folder, args.size, args.batch)
        init_default_scope(cfg.default_scope)
        cfgs = {args.config.stem: cfg}
        for peer in args.peers:
            cfgs[Path(peer).stem] = with_model_of(peer, cfg, args.whole_models)
        measured = list(rows(args, cfgs))
    measure.report(
        measured,
        args,
        'mmdet',
        title='Training steps',
        size=measure.size_text(args.size),
        batch=args.batch,
        dtype='float32',
        baseline=measured[1]['config'],
    )
    return 0


if __name__ == '__main__':
    run_main(main)
