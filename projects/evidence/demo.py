"""Detectors and segmentors of the demos' configs, trained by tools/train.py."""

import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mmengine.config import Config
from torch import nn

from mmattn.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
# What a result depends on, beside the seed. Evaluators compute what their names say.
DECISIVE = 'model', 'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler'
DECISIVE += 'custom_hooks', 'val_dataloader', 'val_cfg'
NOT_METRICS = 'time', 'data_time', 'step'


@dataclass(frozen=True, eq=False)
class Demo:
    """Describe a training of a config whose warmup and cosine end after `iterations`.

    Args:
        config: path of a config on `configs/_base_/schedules/demo.py`, relative to the
            checkout.
        iterations: length of the run; only the last iteration is evaluated.
        options: further entries of the config to override, as `--cfg-options`.
        side: side of the images at which FLOPs are counted.
    """

    config: str
    iterations: int
    options: Mapping[str, object] = field(default_factory=dict)
    side: int = 256

    @cached_property
    def resolved(self) -> Config:
        """Return the config with the schedule and the options.

        Raises:
            ValueError: the warmup of the config is as long.
        """
        config = Config.fromfile(ROOT / self.config)
        begin, n = config.param_scheduler[1].begin, self.iterations
        if n <= begin:
            raise UserError(
                f'iterations must be longer than the warmup of {begin}, got {n}'
            )
        schedule = {
            'train_cfg.max_iters': n,
            'train_cfg.val_interval': n,
            'param_scheduler.1.end': n,
            'param_scheduler.1.T_max': n - begin,
        }
        config.merge_from_dict(copy.deepcopy(schedule | dict(self.options)))
        return config

    @property
    def hash(self) -> str:
        """Return a hash of all that a run depends on beside the seed."""
        config = self.resolved.to_dict()
        content = {key: config.get(key) for key in DECISIVE}
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def images(self) -> int:
        return self.iterations * self.resolved.train_dataloader.batch_size

    @property
    def shape(self) -> tuple[int, int]:
        return self.side, self.side

    @property
    def model(self) -> nn.Module:
        """Return the network on the meta device."""
        import mmattn  # noqa: F401  makes mmcv's operators available
        from mmattn.analysis.flops import build

        return build(self.resolved)


def final_metrics(work_dir: Path, iterations: int) -> dict[str, float]:
    """Return the metrics of the validation after the last iteration.

    Raises:
        ValueError: the last log of the folder does not have them.
    """
    scalars = max(work_dir.glob('*/vis_data/scalars.json'), default=None)
    for record in map(json.loads, scalars.read_text().splitlines() if scalars else ()):
        if record.get('step') == iterations and 'loss' not in record:
            return {k: v for k, v in record.items() if k not in NOT_METRICS}
    raise UserError(f'{work_dir}: no validation after iteration {iterations}')


def train(demo: Demo, seed: int, work_dir: Path) -> dict[str, float]:
    """Train a config, and return its metrics.

    Raises:
        UserError: the training failed, with the last line of `train.log`.
    """
    config = copy.deepcopy(demo.resolved)
    config.randomness = dict(config.get('randomness') or {}, seed=seed)
    config.dump(work_dir / 'config.py')
    command = [sys.executable, 'tools/train.py', work_dir / 'config.py']
    command += ['--work-dir', work_dir]
    path = work_dir / 'train.log'
    with path.open('a') as log:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)},
        )
    if done.returncode:
        *_, last = path.read_text().strip().split('\n')
        raise UserError(f'{path}: the training failed: {last}')
    return final_metrics(work_dir, demo.iterations)
