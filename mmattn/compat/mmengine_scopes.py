"""Config prefixes: `_base_ = 'mmseg::...'` and `_base_ = 'mmattn::...'`.

mmengine resolves `scope::path` through the table `MODULE2PACKAGE` of
`mmengine.config.utils`, a dict from scope to distribution. It has no entry for mmattn,
and its entry for mmseg names the distribution `mmsegmentation`, which does not exist
where mmseg came from `onedl-mmsegmentation`. This module corrects both entries in
place, because other mmengine modules hold the same dict.

mmengine also looks up the types of the base in the registry of the prefix. The types of
our bases belong to mmdet, mmseg and mmpretrain, as `default_scope` says, so `mmattn::`
sets no such scope. Its paths are those of the imported mmattn: an installation, or a
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


def correct_table(utils):
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


def find_config(name: str, package: Path = PACKAGE) -> Path:
    """Return the path of one of our configs, which has `name` after the prefix.

    The name may lack the suffix `.py`.

    Raises:
        FileNotFoundError: there is no such config, or there are no configs at all.
    """
    folders = [package / '.mim' / 'configs', package.parent / 'configs']
    folder = next(filter(Path.is_dir, folders), None)
    if folder is None:
        raise FileNotFoundError(
            f'{SCOPE}::{name} does not exist: {package} came without configs, which '
            f'belong in {folders[0]} or {folders[1]}. Install mmattn with pip, or put '
            'a whole clone on PYTHONPATH'
        )
    for path in (folder / name, folder / f'{name}.py'):
        if path.is_file():
            return path
    names = [path.relative_to(folder).as_posix() for path in folder.rglob('*.py')]
    close = get_close_matches(name, sorted(names), n=3)
    hint = f'the closest are {", ".join(close)}' if close else 'no name is close to it'
    raise FileNotFoundError(f'{SCOPE}::{name} does not exist in {folder}; {hint}')


def correct_bases(config):
    """Make `Config` find our configs without taking a scope from our prefix.

    The argument is the module `mmengine.config.config`.
    """
    found = config.Config._get_cfg_path
    if getattr(found, 'corrected_by', None) == SCOPE:
        return

    def _get_cfg_path(cfg_path, filename):
        scope, _, name = cfg_path.partition('::')
        if name and scope == SCOPE:
            return str(find_config(name)), None
        return found(cfg_path, filename)

    _get_cfg_path.corrected_by = SCOPE
    config.Config._get_cfg_path = staticmethod(_get_cfg_path)
