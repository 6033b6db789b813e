"""Config prefixes: `_base_ = 'mmseg::...'` and `_base_ = 'mmattn::...'`.

mmengine resolves `scope::path` through the table `MODULE2PACKAGE` of
`mmengine.config.utils`, a dict from scope to distribution. It has no entry for mmattn,
and its entry for mmseg names the distribution `mmsegmentation`, which does not exist
where mmseg came from `onedl-mmsegmentation`. This module corrects both entries in
place, because other mmengine modules hold the same dict.

mmengine also looks up the types of the base in the registry of the prefix. The types of
our bases belong to mmdet, mmseg and mmpretrain, as `default_scope` says, so `mmattn::`
sets no such scope. Its paths lie in the imported mmattn: an installation, or a
plain clone on `PYTHONPATH`, which has no `mmattn/.mim`.
"""

from difflib import get_close_matches
from pathlib import Path

__all__ = ['correct_bases', 'correct_table']

SCOPE = 'mmattn'
PACKAGE = Path(__file__).parents[1]


def _is_distribution(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def correct_table(utils) -> bool:
    """Add mmattn, and correct mmseg's entry where its distribution has another name.

    mmengine accepts the name of an importable module in place of a distribution's.
    """
    table = utils.MODULE2PACKAGE
    table.setdefault(SCOPE, 'mmattn')
    expected = table.get('mmseg')
    if (
        expected == 'mmsegmentation'
        and not _is_distribution(expected)
        and _is_distribution('onedl-mmsegmentation')
    ):
        table['mmseg'] = 'mmseg'
    return True


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


def correct_bases(config) -> bool:
    """Make `Config` find our configs without taking a scope from our prefix.

    The argument is the module `mmengine.config.config`.
    """
    found = config.Config._get_cfg_path
    if getattr(found, 'corrected_by', None) == SCOPE:
        return False

    def _get_cfg_path(cfg_path, filename):
        scope, _, name = cfg_path.partition('::')
        if name and scope == SCOPE:
            return str(find_config(name)), None
        return found(cfg_path, filename)

    _get_cfg_path.corrected_by = SCOPE
    config.Config._get_cfg_path = staticmethod(_get_cfg_path)
    return True
