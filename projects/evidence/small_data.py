"""Train networks on small data sets for equal CPU seconds, a row of a csv file each.

    python -m projects.evidence.small_data data/small/*.py --minutes 5 --seeds 0 1 2

A config is one that `mmattn data convert ... --out data/small/NAME` has written, of a
detector or a segmentor. Each network takes the place of its backbone. A few timed steps
tell how many iterations fit into the minutes, in CPU seconds of the training alone: the
validation at its end is not counted. `--parts` takes other parts of the recipe than the
written ones. A run that has a row is skipped, so the same command continues a series.
`docs/finetune.md` shows the rows of the written recipe.
"""

import argparse
import copy
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from mmattn.apis.budget import dataset_of
from mmattn.cli.launch import build_runner
from mmattn.cli.terminal import command_parser, run_main
from mmattn.engine.start import settle_start, use_pretrained
from mmattn.files import read_config_file
from projects.evidence import torchvision_models as torchvision_models  # registers
from projects.evidence.demo import final_metrics
from tools.benchmark.measure import ROOT, about, read_csv, write_csv
from tools.converters.efficientnet_lite0 import OUT as LITE0

ROWS = ROOT / 'docs/evidence/small_data.csv'
WARM, TIMED = 3, 8  # steps before the timed ones, and with them
KEY = 'data', 'images', 'factor', 'network', 'start', 'parts', 'lr', 'minutes', 'seed'
DEMO = 'configs/demo/mask_rcnn_{}_hela.py'  # whose backbone is taken
NETWORKS = dict(ivit_nano='ivit_n_300i', pvt_v2_b0='pvt_v2_b0', resnet18='r18')
NETWORKS |= dict(efficientnet_lite0='efficientnet_lite0')
TORCHVISION = 'torchvision'  # a network that is more than a backbone
# Its references take 0.02 for 16 images of detection, and 0.01 for 8 of segmentation.
SGD = dict(type='SGD', lr=0.005, momentum=0.9, weight_decay=1e-4)
RECIPE = 'jitter', 'ema'  # parts that configs are written with


def put_network(cfg: Config, name: str) -> str:
    """Give a config another backbone, and return what it starts from."""
    if name == TORCHVISION:
        put_torchvision(cfg)
        return 'random'
    demo, model = read_config_file(str(ROOT / DEMO.format(NETWORKS[name]))), cfg.model
    model.backbone = demo.model.backbone
    taking = model.decode_head if 'decode_head' in model else model.neck
    taking.in_channels = demo.model.neck.in_channels
    if name != 'efficientnet_lite0':
        return 'random'
    cfg.custom_imports = demo.custom_imports
    model.data_preprocessor.update(mean=[127.5] * 3, std=[127.5] * 3)
    use_pretrained(cfg, str(LITE0))
    return 'ImageNet'


def put_torchvision(cfg: Config) -> None:
    """Give a config torchvision's light network and the optimizer of its reference."""
    model = dict(num_classes=cfg.num_classes, type='mmattn.TorchvisionSegmentor')
    if 'decode_head' not in cfg.model:
        model.update(
            type='mmattn.TorchvisionDetector',
            max_per_img=cfg.model.test_cfg.rcnn.max_per_img,
        )
    cfg.model = model | dict(data_preprocessor=cfg.model.data_preprocessor)
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=SGD)


def put_parts(cfg: Config, parts: Sequence[str]) -> None:
    """Give a config these parts of a recipe, and no others."""
    pipeline = cfg.train_dataloader.dataset.pipeline
    for step in pipeline:
        if step.type == 'RandomChoice' and 'jitter' not in parts:
            step.transforms = [[cfg.resize]]
    if 'color' in parts:
        pipeline.insert(len(pipeline) - 1, dict(type='PhotoMetricDistortion'))
    if 'ema' not in parts:
        cfg.custom_hooks = []


class Clock(Hook):
    """Keep the CPU time before the first iteration and after each."""

    def __init__(self):
        self.times = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.times = self.times or [time.process_time()]

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.times.append(time.process_time())


def train(cfg: Config, iterations: int, *, validates: bool) -> tuple[list, dict]:
    """Train in this process; return the CPU times of the steps, and the metrics."""
    cfg = copy.deepcopy(cfg)
    cfg.train_cfg.update(max_iters=iterations, val_interval=iterations)
    cfg.default_hooks.checkpoint.update(interval=-1, save_best=None, save_last=False)
    cfg.scale_schedule = True
    if not validates:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    clock = Clock()
    with TemporaryDirectory() as folder:
        # mmengine keeps one visualizer a name, with its folder.
        cfg.work_dir = cfg.visualizer.name = folder
        settle_start(cfg)
        runner = build_runner(cfg)
        runner.register_hook(clock)
        runner.train()
        metrics = final_metrics(Path(folder), iterations) if validates else {}
    return clock.times, metrics


def prepared(path: Path, network: str, seed: int, args) -> tuple[Config, dict]:
    """Return the config of a run, and the columns that define it."""
    cfg = read_config_file(str(path))
    start = put_network(cfg, network)
    put_parts(cfg, args.parts)
    optimizer = cfg.optim_wrapper.optimizer
    optimizer.lr = args.lr or optimizer.lr
    cfg.randomness = dict(seed=seed)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    if args.images is not None:
        cfg.train_dataloader.dataset.indices = args.images
    images = len(dataset_of(cfg, 'train_dataloader'))
    defining = Path(cfg.data_root).name, images, cfg.factor, network, start
    defining += ' '.join(args.parts), optimizer.lr, args.minutes, seed
    return cfg, dict(zip(KEY, map(str, defining), strict=True))


def execute(cfg: Config, minutes: float) -> dict:
    """Train for some CPU minutes, and return the measured columns."""
    times, _ = train(cfg, TIMED, validates=False)
    step = (times[-1] - times[WARM]) / (TIMED - WARM)
    iterations = max(TIMED, round(60 * minutes / step))
    times, metrics = train(cfg, iterations, validates=True)
    found = dict(metric=cfg.default_hooks.checkpoint.save_best, iterations=iterations)
    found |= dict(value=round(metrics[found['metric']], 4))
    return found | dict(cpu_seconds=round(times[-1] - times[0], 1))


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('configs', nargs='+', type=Path)
    parser.add_argument(
        '--networks', nargs='+', choices=[*NETWORKS, TORCHVISION], default=NETWORKS
    )
    parser.add_argument('--minutes', type=float, default=5, help='of CPU time')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument(
        '--parts', nargs='*', choices=[*RECIPE, 'color'], default=RECIPE
    )
    parser.add_argument('--images', type=int, help='first ones to train on; all')
    parser.add_argument('--lr', type=float, help="default: the config's")
    parser.add_argument('--rows', type=Path, default=ROWS, help='csv file of the runs')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    torch.set_num_threads(1)
    on = about('cpu')
    runs = [(s, c, n) for s in args.seeds for c in args.configs for n in args.networks]
    for seed, path, network in runs:
        cfg, key = prepared(path, network, seed, args)
        rows = read_csv(args.rows) if args.rows.is_file() else []
        if not any(key.items() <= row.items() for row in rows):
            rows.append(key | execute(cfg, args.minutes) | on)
            write_csv(args.rows, rows, {})
            print(rows[-1], flush=True)


if __name__ == '__main__':
    run_main(main)
