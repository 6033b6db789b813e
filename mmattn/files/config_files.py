"""Configs in files, those that the package has, and what is in them."""

import traceback
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from mmattn.errors import UserError

SCOPE = 'mmattn'
PACKAGE = Path(__file__).parents[1]
LONGEST = 1000  # characters of an error that a config raises


def read_config_file(path: str | Path):
    """Return the config in a file.

    Raises:
        OSError: the file or one that it inherits cannot be read.
        ValueError: the file is no config. The message names the line.
    """
    from mmengine.config import Config

    try:
        return Config.fromfile(path)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  a program may raise anything
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())[:LONGEST]
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).name == Path(path).name
        ]
        if isinstance(error, SyntaxError):
            lines, reason = [error.lineno], f'{type(error).__name__}: {error.msg}'
        where = f', line {lines[-1]},' if lines else ''
        raise UserError(f'{path}{where} is no config: {reason}') from None


def innermost_dataset(loader: Mapping | None) -> Mapping:
    """Return the config of a loader's data set inside its wrappers; empty without one.

    Args:
        loader: a config's dataloader, or None.
    """
    dataset = (loader or {}).get('dataset') or {}
    while 'dataset' in dataset:
        dataset = dataset['dataset']
    return dataset


def transform_name(transform: Mapping) -> str:
    """Return the name of a transform's class, without its scope."""
    kind = transform['type']
    return (kind if isinstance(kind, str) else kind.__name__).rpartition('.')[2]


def raw_channels(cfg: Mapping) -> int | None:
    """Return the channels of images that are read as they are, None for RGB."""
    dataset = innermost_dataset(cfg.get('test_dataloader'))
    for step in dataset.get('pipeline') or ():
        if transform_name(step) == 'LoadChannels':
            return step['channels']
    return None


def merge_options(cfg, options: Mapping | None):
    """Override entries of a config, a tuple by a tuple.

    Some transforms accept only tuples, and `[64,64]` on a command line is a list.
    """
    options = options or {}
    cfg.merge_from_dict({k: _as_before(cfg, k, v) for k, v in options.items()})


def _as_before(cfg, key: str, value):
    """Return an option, a list as a tuple where the config has a tuple."""
    for name in key.split('.'):
        if isinstance(cfg, list | tuple) and name.isdecimal() and int(name) < len(cfg):
            cfg = cfg[int(name)]
        elif hasattr(cfg, 'get'):
            cfg = cfg.get(name)
        else:
            return value
    return tuple(value) if isinstance(value, list) and isinstance(cfg, tuple) else value


def _close_names(name: str, paths: list[Path]) -> list[str]:
    """Return the configs whose path, or whose name alone, is close to a name."""
    known = {}
    for path in paths:
        known.setdefault(path.as_posix(), path)
        if '/' not in name and path.parts[0] != '_base_':
            known.setdefault(path.stem, path)
    close = get_close_matches(name.removesuffix('.py'), known, n=6)
    close += get_close_matches(name, known, n=6)
    return list(dict.fromkeys(known[each].as_posix() for each in close))[:3]


def config_folder(package: Path = PACKAGE) -> Path:
    """Return the folder of our configs.

    Raises:
        FileNotFoundError: there is none.
    """
    folders = [package / '.mim' / 'configs', package.parent / 'configs']
    folder = next(filter(Path.is_dir, folders), None)
    if folder is None:
        raise FileNotFoundError(
            f'no config does exist: {package} came without configs, which belong in '
            f'{folders[0]} or {folders[1]}. Install mmattn with pip, or put a whole '
            'clone on PYTHONPATH'
        )
    return folder


def find_config(name: str, package: Path = PACKAGE) -> Path:
    """Return the path of one of our configs, which has `name` after the prefix.

    The name may lack the suffix `.py`, and its folder if no other folder has it.

    Raises:
        FileNotFoundError: there is no such config, several have the name, or there are
            no configs at all.
    """
    folder = config_folder(package)
    for path in (folder / name, folder / f'{name}.py'):
        if path.is_file():
            return path
    paths = sorted(path.relative_to(folder) for path in folder.rglob('*.py'))
    stem = name.removesuffix('.py')
    named = [x for x in paths if x.stem == stem and x.parts[0] != '_base_']
    if len(named) == 1:
        return folder / named[0]
    if named:
        raise FileNotFoundError(
            f'several configs are named {name}: give one of '
            f'{", ".join(f"{SCOPE}::{x.as_posix()}" for x in named)}'
        )
    close = _close_names(name, paths)
    hint = f'the closest are {", ".join(close)}' if close else 'no name is close to it'
    raise FileNotFoundError(f'{SCOPE}::{name} does not exist in {folder}; {hint}')
