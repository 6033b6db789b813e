"""Config prefixes: `_base_ = 'mmseg::...'` and `_base_ = 'mmattn::...'`.

mmengine resolves `scope::path` through the table `MODULE2PACKAGE` of
`mmengine.config.utils`, a dict from scope to distribution. It has no entry for mmattn,
and its entry for mmseg names the distribution `mmsegmentation`, which does not exist
where mmseg came from `onedl-mmsegmentation`. This module corrects those two entries,
in place, because other mmengine modules hold the same dict.

mmengine also takes the prefix for the registry in which to look up the types of the
base. Ours are mmdet's, mmseg's and mmpretrain's, as the base's `default_scope` says, so
`mmattn::` gives no such scope.

Both, and what `mmcv_attention`, `mmengine_checkpoints` and `mmpretrain_multimodal`
correct, are corrected at once when the module has been imported already, and otherwise
right after it is executed, by a finder that lets the regular finders find it and wraps
the loader they chose. Importing mmattn therefore never imports mmengine.
"""

import sys

from mmattn.compat.mmcv_attention import correct_attention
from mmattn.compat.mmengine_checkpoints import (
    correct_inferencer,
    correct_initializer,
    correct_loaders,
)
from mmattn.compat.mmpretrain_multimodal import correct_dependency

__all__ = ['install']

SCOPE = 'mmattn'


def _is_distribution(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _correct_table(utils):
    """Adds mmattn, and points mmseg at the module where its distribution is another.

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


def _correct_base_scope(config):
    """Makes `Config` find bases under our prefix without a scope of their own."""
    found = config.Config._get_cfg_path
    if getattr(found, 'corrected_by', None) == SCOPE:
        return

    def _get_cfg_path(cfg_path, filename):
        path, scope = found(cfg_path, filename)
        return path, None if scope == SCOPE else scope

    _get_cfg_path.corrected_by = SCOPE
    config.Config._get_cfg_path = staticmethod(_get_cfg_path)


CORRECTIONS = {
    'mmcv.ops.multi_scale_deform_attn': correct_attention,
    'mmengine.config.utils': _correct_table,
    'mmengine.config.config': _correct_base_scope,
    'mmengine.infer.infer': correct_inferencer,
    'mmengine.runner.checkpoint': correct_loaders,
    'mmengine.model.weight_init': correct_initializer,
    'mmpretrain.utils.dependency': correct_dependency,
}


class _CorrectingLoader:
    """Runs the loader that was found, corrects the module and takes itself away."""

    def __init__(self, loader, correct):
        self._loader = loader
        self._correct = correct

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._correct(module)


class _CorrectingFinder:
    """Finds the modules to correct through the finders that follow it."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in CORRECTIONS or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = _CorrectingLoader(spec.loader, CORRECTIONS[fullname])
                return spec
        return None


_FINDER = _CorrectingFinder()


def install():
    """Corrects mmengine now or, if it is not there yet, when it is imported."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    for name, correct in CORRECTIONS.items():
        if name in sys.modules:
            correct(sys.modules[name])
