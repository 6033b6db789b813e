"""Train on annotated images in a line of Python, by the commands of a shell."""

import json
import os
import re
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from mmengine.config import Config

from mmattn.errors import UserError

from ..data.archs import find_arch
from ..data.config_templates import ARCH
from ..data.recognize import config_for
from ..engine.start import fetch_start, settle_start, use_pretrained
from ..files import read_config_file
from ..files.atomic import write_atomically
from ..files.config_text import check_text
from ..images import read_image
from .budget import LIMIT, Cost, Plan, dataset_of, measure, plan
from .command import run_command
from .find import run_checkpoint
from .predictor import Predictor, Result

SHORTEST = 180  # seconds that the timed steps, and the training, may take in any case
SPARE = 0.1  # of the time, since others may slow the machine down
NO_METRICS = 'step', 'time', 'data_time'
RUN = """\
# {said}, by mmattn.finetune.
# `mmattn train {path}` trains it again.
_base_ = {base!r}
{settings}
# The warm-up and the learning rates follow the length.
scale_schedule = True
work_dir = {work_dir!r}
"""
BY_ITERATION = """\
train_cfg = dict(max_iters={iterations}, val_interval={interval})
default_hooks = dict(checkpoint=dict(interval={interval}))
"""
BY_EPOCH = 'train_cfg = dict(max_epochs={epochs}, val_interval={interval})\n'


def finetune(
    data: str | Path,
    arch: str = ARCH,
    minutes: float = 20,
    *,
    pretrained: str | Path | None = None,
    classes: Sequence[str] | None = None,
    work_dir: str | Path | None = None,
) -> 'Run':
    """Train a detector, segmentor or classifier on annotated images.

    The data decides which: objects with boxes or outlines, label maps, or a folder for
    each class. A few timed steps tell how many fit into the minutes on this machine.
    Everything is written: a config for the data beside it, and a config of this
    training, `WORK_DIR.py`, which `mmattn train` runs in a process of its own.

    Args:
        data: folder of images with annotations, or a config. `mmattn.data.recognize`
            lists the layouts. What must be converted is converted into a folder beside
            it, `DATA_mmattn`.
        arch: backbone, of `mmattn models --backbones`. It is ignored for a config.
        minutes: how long this takes, with the timed steps and the validations. A
            training that is slower than its first steps is stopped then.
        pretrained: weights to start from, by any name that `mmattn train --pretrained`
            takes: a work dir or a detector gives all but its last layers, and 'none'
            random weights. By default the published weights of the backbone.
        classes: names of the classes, where annotations have numbers alone.
        work_dir: folder of the log and the checkpoints; `work_dirs/CONFIG` by default.

    Returns:
        The training, with its work dir, report, export and predictor.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the data is not recognized or wrong, the weights do not fit or are
            out of reach, or training fails.

    Example:
        >>> import mmattn
        >>> run = mmattn.finetune('data/trees', minutes=20)  # doctest: +SKIP
        >>> run.report(); run.export('trees.onnx')  # doctest: +SKIP
        >>> run.predictor('image.jpg').draw()  # doctest: +SKIP
    """
    if not minutes > 0:
        raise UserError(f'`minutes` must be positive, got {minutes}')
    end = time.monotonic() + 60 * minutes
    start = None if pretrained is None else str(pretrained)
    published = start if start is None else 'none'
    base = config_for(Path(data), find_arch(arch), published, classes)
    folder = Path(work_dir or Path('work_dirs', base.stem))
    config = folder.with_name(f'{folder.name}.py')
    if config.resolve() == base.resolve():
        raise UserError(f'{config} is the config of the data: choose another work_dir')
    cfg = read_config_file(str(base))
    settings = _start(cfg, start)
    _write(config, base, folder, settings, 'Steps are timed')
    fetch_start(settle_start(read_config_file(str(config))))
    print(f'timing a few steps of {base}', flush=True)
    cost = measure(config, max(SHORTEST, LIMIT * 60 * minutes))
    chosen = plan(cost, (1 - SPARE) * (end - time.monotonic()))
    said = described(minutes, cost, chosen)
    print(said, flush=True)
    _write(config, base, folder, settings + _length(cfg, chosen), said)
    run_command('train', config, limit=max(SHORTEST, end - time.monotonic()))
    return Run(folder, config)


def _start(cfg: Config, given: str | None) -> str:
    """Return the lines of a config about the weights that it starts from."""
    if given is None:
        return ''
    if Path(given).is_dir():
        given = str(run_checkpoint(Path(given)))
    use_pretrained(cfg, given)
    check_text(given, '`pretrained`')
    init_cfg = cfg.model.backbone.init_cfg
    init_cfg = init_cfg and dict(_delete_=True, **init_cfg)
    return (
        f'model = dict(backbone=dict(init_cfg={init_cfg!r}))\n'
        f'load_from = {cfg.load_from!r}\n'
        f'fine_tune = {cfg.fine_tune!r}\n'
    )


def _length(cfg: Config, chosen: Plan) -> str:
    """Return the lines of a config about the length of the training."""
    kind = cfg.train_cfg.get('type', '')
    if not cfg.train_cfg.get('by_epoch') and 'Epoch' not in kind:
        return BY_ITERATION.format(**vars(chosen))
    images = len(dataset_of(cfg, 'train_dataloader'))
    length = max(1, images // cfg.train_dataloader.batch_size)
    epochs = max(1, round(chosen.iterations / length))
    interval = max(1, round(epochs * chosen.interval / chosen.iterations))
    return BY_EPOCH.format(epochs=epochs, interval=interval)


def described(minutes: float, cost: Cost, chosen: Plan) -> str:
    """Return the length of a training in words."""
    count = -(-chosen.iterations // chosen.interval)
    return (
        f'{minutes:g} min here are {chosen.iterations} iterations of {cost.step:.2f} s '
        f'and {count} validations of {cost.validation:.0f} s'
    )


def _write(config: Path, base: Path, folder: Path, settings: str, said: str):
    for text in (str(base), str(folder)):
        check_text(text, 'a path')
    config.parent.mkdir(parents=True, exist_ok=True)
    text = RUN.format(
        said=said,
        path=config,
        base=Path(os.path.relpath(base, config.parent)).as_posix(),
        settings=settings.rstrip(),
        work_dir=str(folder),
    )
    write_atomically(config, text.encode())


class Run:
    """A training that has ended.

    Attributes:
        work_dir: folder of the log, the checkpoints and the results.
        config: file that `mmattn train` has run.
    """

    def __init__(self, work_dir: Path, config: Path):
        self.work_dir, self.config = work_dir, config

    def __repr__(self) -> str:
        return f'{type(self).__name__}({str(self.work_dir)!r}, {str(self.config)!r})'

    @property
    def checkpoint(self) -> Path:
        """File of the best weights, else of the last."""
        return run_checkpoint(self.work_dir)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the validation that chose the best weights, else of the last.

        Raises:
            ValueError: the run has not validated.
        """
        logs = sorted(self.work_dir.glob('*/vis_data/scalars.json'))
        records = map(json.loads, logs[-1].read_text().splitlines())
        validations = [r for r in records if 'loss' not in r]
        if not validations:
            raise UserError(
                f'{self.work_dir} has no validation in its log, as the minutes ended '
                f'before one: mmattn test {self.work_dir} evaluates its weights'
            )
        number = int(re.search(r'(\d+)\.pth', self.checkpoint.name)[1])
        best = [r for r in validations if r['step'] == number]
        found = (best or validations)[-1]
        return {k: v for k, v in found.items() if k not in NO_METRICS}

    def report(self) -> Path:
        """Test the best weights, and write and return `report.md` of the work dir.

        It is what `mmattn test --per-class --confusion` and `mmattn report` do.
        """
        run_command('test', self.work_dir, '--per-class', '--confusion')
        run_command('report', self.work_dir)
        return self.work_dir / 'report.md'

    def export(
        self, out: str | Path, shape: tuple[int, int] | None = None, **options
    ) -> Path:
        """Write the best weights as a file for other runtimes, and return its path.

        Args:
            out: file that ends in .onnx, .xml or .pt2.
            shape: height and width of images; by default those of the first image to
                validate on, as the model sees it.
            options: see `mmattn.export.export_model`.
        """
        from ..export import export_model

        cfg = self._loaded.model.cfg
        shape = shape or self._size()
        export_model(cfg, str(self.checkpoint), Path(out), shape=shape, **options)
        return Path(out)

    @cached_property
    def _loaded(self) -> Predictor:
        return Predictor(self.work_dir)

    def predictor(self, images, **options) -> Result | list[Result]:
        """Return the result of an image, or a list for several; see `Predictor`."""
        return self._loaded(images, **options)

    def _size(self) -> tuple[int, int]:
        """Return the height and width that the model sees of the first image."""
        model = self._loaded.model
        path = dataset_of(model.cfg, 'val_dataloader').get_data_info(0)['img_path']
        return model.prepared_size(read_image(path))
