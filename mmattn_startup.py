"""Make the mm packages importable without `import mmattn`.

An installation of mmattn puts `mmattn_startup.pth` beside this file, so Python imports
it whenever an interpreter starts. It must therefore be fast and silent. It imports
nothing and adds one finder to `sys.meta_path`, which waits for the first import of an
mm package. Then it installs the finders of `mmattn.compat.finder` with the table
`AT_START`. It does not import `mmattn`, because that also changes how mmengine reads
checkpoints, which a program has to ask for.
"""

import sys

__all__ = ['install']

MM_PACKAGES = frozenset(('mmcv', 'mmengine', 'mmpretrain'))
COMPAT = 'mmattn.compat'
# The modules and packages of `mmattn.compat` that are loaded alone.
PARTS = (
    'finder',
    'mmengine_scopes',
    'mmengine_names',
    'mmpretrain_multimodal',
    'mmcv_ops',
)


class _Watch:
    """Wait, first in `sys.meta_path`, for an mm package; find nothing itself."""

    awaited = MM_PACKAGES

    def find_spec(self, fullname, path=None, target=None):
        if fullname in self.awaited:
            self.awaited = frozenset()
            _repair()
        return None


_WATCH = _Watch()


def install():
    """Add the finder. A second call changes nothing."""
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)


def _repair():
    # `import mmattn` does more than this, and a partial installation must stay silent.
    if 'mmattn' not in sys.modules and None not in map(_file_of, PARTS):
        finder = _load(f'{COMPAT}.finder')
        finder.install(finder.AT_START, _load)


def _file_of(part: str) -> str | None:
    """Return the file of a part of `mmattn.compat`, None if it does not exist."""
    from importlib.util import find_spec
    from os.path import isfile, join

    spec = find_spec('mmattn')
    for folder in (spec and spec.submodule_search_locations) or ():
        for name in (f'{part}.py', join(part, '__init__.py')):
            path = join(folder, 'compat', name)
            if isfile(path):
                return path
    return None


def _load(name: str):
    """Import a part of `mmattn.compat` without its parent packages."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    if name in sys.modules or 'mmattn' in sys.modules:
        return import_module(name)
    if name == f'{COMPAT}.mmengine_names':
        _load(f'{COMPAT}.mmengine_scopes')
    spec = spec_from_file_location(name, _file_of(name.rpartition('.')[2]))
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


install()
