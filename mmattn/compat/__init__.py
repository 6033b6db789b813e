"""What lets mmattn sit on the mm packages a user already has.

`activate` is the only entry, and `import mmattn` calls it. It installs two finders in
`sys.meta_path` and changes nothing else:

- at the end, one that serves `mmcv._ext` from `mmattn.compat.mmcv_ops` when mmcv came
  without its compiled operators. Python asks it only after every other finder has
  failed, so an mmcv that was compiled keeps its own operators;
- at the front, one that corrects mmengine when it is imported: it adds the `mmseg::`
  and `mmattn::` config prefixes (`mmattn.compat.mmengine_scopes`) and makes it read
  checkpoints without running them (`mmattn.compat.mmengine_checkpoints`). It also lets
  mmpretrain be imported beside transformers 5 (`mmattn.compat.mmpretrain_multimodal`),
  and runs mmcv's deformable attention on ours (`mmattn.compat.mmcv_attention`).
"""

import importlib
import sys
from importlib.machinery import ModuleSpec

from mmattn.compat import mmengine_scopes

__all__ = ['activate']

SERVED_MODULE = 'mmcv._ext'
IMPLEMENTATION = 'mmattn.compat.mmcv_ops'


class _ServedOpsLoader:
    """Fills `mmcv._ext` from the implementation, which imports torch, when loaded."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        ops = importlib.import_module(IMPLEMENTATION)
        vars(module).update({name: getattr(ops, name) for name in ops.__all__})
        module.__doc__ = ops.__doc__
        module.__getattr__ = ops.__getattr__


class _ServedOpsFinder:
    """Finds `mmcv._ext`, and nothing else, after the finders before it did not."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != SERVED_MODULE:
            return None
        return ModuleSpec(fullname, _ServedOpsLoader(), origin=IMPLEMENTATION)


_FINDER = _ServedOpsFinder()


def activate():
    """Installs both finders; calling it again changes nothing.

    It imports neither torch nor any mm* package: what a finder needs is imported when
    mmcv or mmengine asks for it.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    mmengine_scopes.install()
