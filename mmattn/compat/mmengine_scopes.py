"""Config prefixes: `_base_ = 'mmseg::...'` and `_base_ = 'mmattn::...'`.

mmengine resolves `scope::path` through the table `MODULE2PACKAGE` of
`mmengine.config.utils`, a dict from scope to distribution. It has no entry for mmattn,
and its entry for mmseg names the distribution `mmsegmentation`, which does not exist
where mmseg came from `onedl-mmsegmentation`. This module corrects those two entries,
in place, because other mmengine modules hold the same dict.

The table is corrected at once when mmengine has been imported already, and otherwise
right after the module is executed, by a finder that lets the regular finders find it
and wraps the loader they chose. Importing mmattn therefore never imports mmengine.
"""

import sys

__all__ = ['install']

TABLE_MODULE = 'mmengine.config.utils'
TABLE_NAME = 'MODULE2PACKAGE'


def _is_distribution(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _correct(table: dict):
    """Adds mmattn, and points mmseg at the module where its distribution is another.

    mmengine accepts the name of an importable module in place of a distribution's.
    """
    table.setdefault('mmattn', 'mmattn')
    expected = table.get('mmseg')
    if (
        expected == 'mmsegmentation'
        and not _is_distribution(expected)
        and _is_distribution('onedl-mmsegmentation')
    ):
        table['mmseg'] = 'mmseg'


class _CorrectingLoader:
    """Runs the loader that was found, corrects the table and takes itself away."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _correct(getattr(module, TABLE_NAME))


class _TableFinder:
    """Finds `mmengine.config.utils` through the finders that follow it."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != TABLE_MODULE or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = _CorrectingLoader(spec.loader)
                return spec
        return None


_FINDER = _TableFinder()


def install():
    """Corrects the table now or, if mmengine is not there yet, when it is imported."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    module = sys.modules.get(TABLE_MODULE)
    if module is not None:
        _correct(getattr(module, TABLE_NAME))
