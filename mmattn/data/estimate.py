"""Time a few steps of a training that has just been prepared."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from mmengine.config import Config

from mmattn.errors import UserError

TRAIN = sys.executable, '-m', 'mmattn', 'train'
STEPS = 3  # the first is not counted: it includes what is done once
LIMIT = 120  # seconds
SHORT = 300  # iterations that show whether anything is learned
OPTIONS = (
    f'train_cfg.max_iters={STEPS}',
    'log_processor.window_size=1',
    'default_hooks.logger.interval=1',
    'default_hooks.checkpoint.save_last=False',
)


def seconds_per_step(config: Path) -> float:
    """Return the mean time of two training steps, with their data.

    The steps run in `mmattn train`, with the same threads, device and errors as the
    training, and a training that the memory does not fit ends that process alone.

    Raises:
        ValueError: no step is finished; the message has the reason.
    """
    reason = f'no two steps in {LIMIT} s'
    with tempfile.TemporaryDirectory() as folder:
        command = [*TRAIN, config, '--work-dir', folder, '--no-validate']
        command += ['--pretrained', 'none']
        try:
            done = subprocess.run(
                [*command, '--cfg-options', *OPTIONS],
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
            reason = (done.stderr.strip() or 'no output').splitlines()[-1]
        except subprocess.TimeoutExpired:
            pass  # what has been logged may do
        logs = sorted(Path(folder).glob('*/vis_data/scalars.json'))
        lines = logs[-1].read_text().splitlines() if logs else []
    times = [json.loads(line)['time'] for line in lines][1:]
    if not times:
        raise UserError(reason)
    return sum(times) / len(times)


def duration(seconds: float) -> str:
    """Return a time in words, in minutes below two hours."""
    minutes = seconds / 60
    return f'{max(minutes, 1):.0f} min' if minutes < 120 else f'{minutes / 60:.1f} h'


def describe(config: Path, halve: bool = True) -> str:
    """Return how long a config trains here, and how to train shorter.

    A training that fails gives the reason instead of a time.

    Args:
        config: path of the config.
        halve: whether to advise smaller images.
    """
    try:
        seconds = seconds_per_step(config)
    except ValueError as error:
        return f'no estimate of the training time: {error}'
    cfg = Config.fromfile(config)
    steps = cfg.train_cfg.max_iters
    text = (
        f'estimate: {seconds:.2f} s a step on this machine, '
        f'{duration(seconds * steps)} for {steps} steps; validation comes on top'
    )
    if steps > SHORT:
        text += (
            f'\na first look in {duration(seconds * SHORT)}:\n'
            f'  mmattn train {config} --cfg-options train_cfg.max_iters={SHORT} '
            f'train_cfg.val_interval={SHORT // 3} '
            f'default_hooks.checkpoint.interval={SHORT // 3} scale_schedule=True'
        )
    if halve and 'factor' in cfg:
        text += (
            f'\nfactor = {cfg.factor / 2:g} in {config} halves the sides of images: '
            'steps are faster, small objects may be lost'
        )
    return text
