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

from mmattn.files.config_files import SCOPE, find_config

__all__ = ['correct_bases', 'correct_table']


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
