"""Find the config and the weights of a model by a path, a work dir or a name."""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmattn.errors import UserError

from ..files.config_files import SCOPE, find_config, merge_options, read_config_file
from ..files.dumped_config import read_dumped_config
from ..files.last_checkpoint import read_last_checkpoint
from ..weights.names import (
    DEMOS,
    SCHEME,
    config_of,
    demo_weights,
    find_published,
    is_name,
)
from ..weights.resolve import check_name

if TYPE_CHECKING:
    from mmengine.config import Config

EXPORTED = ('.onnx', '.pt2', '.xml')
CHECKPOINTS = ('.pth', '.pt', '.safetensors')
RANDOM = 'random'
CHOICES = ('best', 'last')
# How mmengine's hooks name what they save.
NUMBERED = re.compile(r'(?:epoch|iter)_(\d+)\.pth')


@dataclass
class Found:
    """A model that can be built or loaded.

    Attributes:
        name: what the user gave, as text.
        cfg: the config; None for an exported file.
        weights: path or address of the checkpoint, or of the exported file; None keeps
            random weights.
    """

    name: str
    cfg: 'Config | None'
    weights: str | None


def find_model(
    model: 'str | Path | Config',
    weights: str | Path | None = None,
    cfg_options: Mapping | None = None,
    config: str | Path | None = None,
) -> Found:
    """Return the config and the weights of a model.

    A config is code, and so is one that is given. The config of a work dir is read as
    data, so a work dir may come from anywhere.

    Args:
        model: a config, its path, the name of one of our configs
            ('mmattn::mask_rcnn/ivit_t_3x_coco.py' or 'ivit_t_3x_coco'), one of another
            package ('mmdet::...'), the work dir of a run, a checkpoint in a work dir,
            an exported .onnx, .pt2 or .xml file, or a name of weights with or without
            'mmattn://', of `mmattn weights list` ('pvt_v2_b2') or of a demo
            ('mmattn://hela-ivit-n').
        weights: a checkpoint, by any name that `mmattn.weights.resolve` lists; for a
            work dir also 'best' or 'last', and by default the best one, else the last.
            'random' keeps random weights.
        cfg_options: entries of the config to override.
        config: the config of a work dir or a checkpoint, which runs, in place of that
            of the run.

    Raises:
        FileNotFoundError: there is no such config, run or checkpoint.
        ValueError: several configs have the name, the config in the work dir is more
            than data, or there are no weights.
    """
    weights = None if weights is None else str(weights)
    if not isinstance(model, str | Path):
        from mmengine.config import Config  # not needed for an exported file

        if not isinstance(model, Config):
            raise UserError(
                f'a model is a path, a name or a Config, got {type(model).__name__}'
            )
        cfg = deepcopy(model)
        name = Path(model.filename).name if model.filename else 'the config'
    else:
        name = str(model)
        path = Path(model).expanduser()
        named = None if path.exists() else named_weights(name)
        if named is not None:
            path, weights = named[0], weights or named[1]
        if path.suffix in EXPORTED:
            return _exported(path, weights, cfg_options, config)
        if path.is_file() and path.suffix in CHECKPOINTS:
            weights, path = weights or str(path), path.parent
        if path.is_dir():
            return _finished(name, path, weights, cfg_options, config)
        cfg = read_config(name if named is None else str(path))
    if config is not None:
        raise UserError(f'`config` is for a work dir or a checkpoint, got {name}')
    merge_options(cfg, cfg_options)
    return Found(name, cfg, _checked(name, weights))


def named_weights(name: str) -> tuple[Path, str] | None:
    """Return the config that weights of a name belong to, and a name to read them by.

    Of a demo's weights, return the work dir that they and the config are in.

    Returns:
        The config or the work dir, and a checkpoint; None for any other name.

    Raises:
        ValueError: no weights have a name that begins with `mmattn://`, or they are
            those of a backbone alone.
        FileNotFoundError: the demo has not run here.
    """
    bare = name.removeprefix(SCHEME)
    if bare == name and not is_name(name):
        return None
    if bare in DEMOS:
        path = demo_weights(bare)
        return path.parent, str(path)
    config = config_of(find_published(bare))
    if config is None:
        raise UserError(
            f'{name} holds the weights of a backbone, without a model to run: pass '
            'them to `mmattn train CONFIG --pretrained` or `mmattn.create_model`'
        )
    return find_config(config), name


def _checked(name: str, weights: str | None) -> str | None:
    """Return the weights of a config, None for random ones."""
    if weights is None:
        raise UserError(
            f'{name} comes without weights: pass `weights` (--weights), which is a '
            'path, a name or an address, or pass the work dir of a run in place of '
            f"the config. weights='{RANDOM}' tries the model without training"
        )
    if weights == RANDOM:
        return None
    if weights in CHOICES:
        raise UserError(f'weights={weights!r} requires a work dir, got {name}')
    check_name(weights)
    return weights


def _exported(
    path: Path,
    weights: str | None,
    cfg_options: Mapping | None,
    config: str | Path | None,
) -> Found:
    given = {'weights': weights, 'cfg_options': cfg_options, 'config': config}
    if used := [key for key, value in given.items() if value]:
        raise UserError(
            f'an exported file holds its weights and settings: leave out '
            f'{" and ".join(used)} for {path}'
        )
    if not path.is_file():
        raise FileNotFoundError(f'there is no exported file at {path}')
    return Found(str(path), None, str(path))


def read_config(name: str) -> 'Config':
    """Return the config of a path, or of a name as `find_model` takes it.

    Raises:
        FileNotFoundError: there is no such config.
        ValueError: several configs have the name, or the file is no config.
    """
    path = Path(name).expanduser()
    scope, prefixed, below = name.partition('::')
    if prefixed and scope != SCOPE:
        from mmengine.hub import get_config

        return get_config(name)
    if path.is_file() and path.suffix != '.py':
        raise UserError(
            f'a model is a config (.py), a work dir, a checkpoint {CHECKPOINTS} or an '
            f'exported file {EXPORTED}, got {name}'
        )
    if prefixed:
        path = find_config(below)
    elif not path.is_file():
        try:
            path = find_config(name)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f'there is no file or work dir {name}, and {error}'
            ) from error
    return read_config_file(path)


def _finished(
    name: str,
    folder: Path,
    weights: str | None,
    cfg_options: Mapping | None,
    config: str | Path | None,
) -> Found:
    cfg = read_run(folder) if config is None else read_config(str(config))
    merge_options(cfg, cfg_options)
    if weights is None or weights in CHOICES:
        weights = str(run_checkpoint(folder, weights, cfg))
    return Found(name, cfg, _checked(name, weights))


def read_run(folder: Path) -> 'Config':
    """Return the config of a run; its work dir is the folder, which may have moved."""
    cfg = read_dumped_config(run_config(folder))
    cfg.work_dir = str(folder)
    return cfg


def run_config(folder: Path) -> Path:
    """Return the path of the config that a run wrote into its work dir.

    Raises:
        FileNotFoundError: there is no config.
        ValueError: there are several.
    """
    found = sorted(folder.glob('*.py'))
    if not found:  # a run that another tool started
        found = sorted(folder.glob('*/vis_data/config.py'))[-1:]
    if not found:
        raise FileNotFoundError(
            f'{folder} is no work dir: it has no config (*.py), which training writes'
        )
    if len(found) > 1:
        raise UserError(
            f'{folder} has several configs, {", ".join(map(str, found))}: pass one of '
            'them as the model, and its checkpoint as `weights`'
        )
    return found[0]


def run_checkpoint(
    folder: Path, which: str | None = None, cfg: 'Config | None' = None
) -> Path:
    """Return a checkpoint of a run.

    Args:
        folder: work dir.
        which: 'best', 'last', or None for the best one if there is one, else the last.
            If several metrics have a best one, the newest by the first metric of the
            config's `save_best` is taken.
        cfg: config of the run; None reads the one in the work dir.

    Raises:
        FileNotFoundError: there is none.
    """
    best = sorted(folder.glob('best_*.pth'), key=lambda path: path.stat().st_mtime)
    if best and which != 'last':
        return best[-1] if len(best) == 1 else _best_by_config(folder, best, cfg)
    if which == 'best':
        raise FileNotFoundError(
            f"{folder} has no best checkpoint (best_*.pth): pass weights='last', or "
            'train with default_hooks.checkpoint.save_best, such as coco/bbox_mAP'
        )
    named = read_last_checkpoint(folder)
    if named is not None:
        # The folder may have moved since the path was written.
        last = folder / Path(named).name
        if last.is_file():
            return last
    numbered = [
        (int(match[1]), path)
        for path in folder.glob('*.pth')
        if (match := NUMBERED.fullmatch(path.name))
    ]
    if not numbered:
        raise FileNotFoundError(
            f'{folder} has no checkpoint yet (best_*.pth, epoch_*.pth, iter_*.pth)'
        )
    return max(numbered)[1]


def _best_by_config(folder: Path, best: list[Path], cfg: 'Config | None') -> Path:
    """Return the last of `best` that is named by the metric of the run's config."""
    cfg = read_dumped_config(run_config(folder)) if cfg is None else cfg
    metric = cfg.get('default_hooks', {}).get('checkpoint', {}).get('save_best')
    metric = metric[0] if isinstance(metric, list) else metric
    named = re.escape(f'best_{metric}_'.replace('/', '_'))
    chosen = [path for path in best if re.match(rf'{named}[a-z]+_\d+', path.name)]
    return (chosen or best)[-1]
