"""Fit a training into minutes, by timing a few of its steps on this machine."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmattn.errors import UserError

from ..engine.data.build import build_dataset
from ..files import read_config_file
from ..files.config_files import innermost_dataset
from .command import run_command

STEPS = 8  # of which the first is not counted: it includes what is done once
IMAGES = 4  # of the validation
VALIDATIONS = 4  # at most
SHARE = 0.2  # of the time, which validations may take
LIMIT = 0.25  # share of the time, which the timed steps may take
FEWEST = 10  # iterations of a training
TRIAL = """\
_base_ = {config!r}
train_cfg = dict(
    _delete_=True, type='IterBasedTrainLoop', max_iters={steps}, val_interval={steps}
)
scale_schedule = True
val_dataloader = dict(dataset={val!r})
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1, log_metric_by_epoch=False),
    checkpoint=dict(
        _delete_=True,
        type='mmattn.CheckpointHook',
        by_epoch=False,
        interval=-1,
        save_last=False,
    ),
)
log_processor = dict(_delete_=True, type='LogProcessor', by_epoch=False, window_size=1)
"""


@dataclass(frozen=True)
class Cost:
    """Seconds that a training takes on a machine.

    Attributes:
        step: an iteration, with its data.
        image: an image of a validation.
        start: until the first iteration.
        images: number of images of a validation.
    """

    step: float
    image: float
    start: float
    images: int

    @property
    def validation(self) -> float:
        return self.image * self.images


def measure(config: Path, limit: float) -> Cost:
    """Return what a config costs here, by `mmattn train` with a few steps.

    Args:
        config: of the training.
        limit: seconds after which the steps that have ended must do.

    Raises:
        ValueError: no two steps end in this time, or training fails.
    """
    cfg = read_config_file(str(config))
    dataset = innermost_dataset(cfg.val_dataloader)
    is_plain = dataset is cfg.val_dataloader.dataset and 'indices' not in dataset
    with TemporaryDirectory() as folder:
        trial = Path(folder, 'trial.py')
        trial.write_text(
            TRIAL.format(
                config=str(config.resolve()),
                steps=STEPS,
                val=dict(indices=IMAGES) if is_plain else {},
            )
        )
        started = time.monotonic()
        run_command('train', trial, '--work-dir', folder, say=None, limit=limit)
        whole = time.monotonic() - started
        records = [
            json.loads(line)
            for log in Path(folder).glob('*/vis_data/scalars.json')
            for line in log.read_text().splitlines()
        ]
    steps = [r['time'] for r in records if 'loss' in r]
    if len(steps) < 2:
        raise UserError(
            f'no two steps of {config} ended in {whole:.0f} s: pass more `minutes`, or '
            'make the images or the batch smaller in the config of the data'
        )
    step = sum(steps[1:]) / len(steps[1:])
    # The record of a validation has the seconds of a batch.
    batch = cfg.val_dataloader.get('batch_size', 1)
    val = [r['time'] for r in records if 'loss' not in r and 'time' in r]
    image = val[-1] / batch if val else step / cfg.train_dataloader.batch_size
    start = max(0.0, whole - sum(steps) - (val[-1] * IMAGES / batch if val else 0))
    return Cost(step, image, start, len(dataset_of(cfg, 'val_dataloader')))


def dataset_of(cfg: Config, key: str):
    """Return the data set of a loader of a config, such as 'val_dataloader'."""
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        return build_dataset(cfg[key].dataset, f'{key}.dataset')


@dataclass(frozen=True)
class Plan:
    """The iterations of a training, and those between its validations."""

    iterations: int
    interval: int


def plan(cost: Cost, seconds: float) -> Plan:
    """Return the iterations that fit into seconds, with the start and validations.

    Validations take at most a fifth of the time, but one is made at the end.
    """
    left = seconds - cost.start
    count = int(SHARE * left / max(cost.validation, 1e-9))
    count = min(max(count, 1), VALIDATIONS)
    iterations = int((left - count * cost.validation) / cost.step)
    iterations = max(iterations, FEWEST)
    return Plan(iterations, -(-iterations // count))
