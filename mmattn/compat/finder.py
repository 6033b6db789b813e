"""The finders that `mmattn.compat` installs in `sys.meta_path`.

The first finder serves `mmcv._ext` when mmcv came without its compiled operators. It is
at the end of the path. Python asks it only after every other finder has failed, so a
compiled mmcv keeps its own operators. The second, also at the end, finds modules of
ours by the names that they had before they moved.

The third is at the front. It corrects a module right after its execution: the regular
finders find the module, and it wraps the loader that they chose. So importing mmattn
never imports mmengine.

Two tables list the corrections. `AT_START` repairs code that fails without mmattn, and
`mmattn_startup` installs it in every interpreter of an environment where mmattn is
installed. `WITH_MMATTN` also replaces code that works without us, so it waits for
`import mmattn`. `mmattn_startup` loads this file without the package, so it imports
nothing of ours at the top.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec

__all__ = ['AT_START', 'IMPLEMENTATION', 'SERVED_MODULE', 'WITH_MMATTN', 'install']

SERVED_MODULE = 'mmcv._ext'
IMPLEMENTATION = 'mmattn.compat.mmcv_ops'
# Our module and function that correct a module, by the name of that module.
AT_START = {
    'mmengine.config.utils': ('mmattn.compat.mmengine_scopes', 'correct_table'),
    'mmengine.config.config': ('mmattn.compat.mmengine_scopes', 'correct_bases'),
    'mmengine.infer.infer': ('mmattn.compat.mmengine_names', 'correct_inferencer'),
    'mmpretrain.apis.model': ('mmattn.compat.mmengine_names', 'correct_model_hub'),
    'mmpretrain.utils.dependency': (
        'mmattn.compat.mmpretrain_multimodal',
        'correct_dependency',
    ),
}
WITH_MMATTN = AT_START | {
    'mmcv.ops.multi_scale_deform_attn': (
        'mmattn.compat.mmcv_attention',
        'correct_attention',
    ),
    'mmengine.infer.infer': (
        'mmattn.compat.mmengine_checkpoints',
        'correct_inferencer',
    ),
    'mmengine.model.weight_init': (
        'mmattn.compat.mmengine_checkpoints',
        'correct_initializer',
    ),
    'mmengine.runner.checkpoint': (
        'mmattn.compat.mmengine_checkpoints',
        'correct_loaders',
    ),
}


class _FillingLoader:
    """Fill an empty module with `fill` when it is imported."""

    def __init__(self, fill: Callable):
        self.exec_module = fill

    def create_module(self, spec):
        return None


class _ServedOpsFinder:
    """Find `mmcv._ext` if the other finders did not."""

    def __init__(self):
        self.load = importlib.import_module

    def find_spec(self, fullname, path=None, target=None):
        if fullname != SERVED_MODULE:
            return None
        return ModuleSpec(fullname, _FillingLoader(self.fill), origin=IMPLEMENTATION)

    def fill(self, module):
        ops = self.load(IMPLEMENTATION)  # which imports torch
        vars(module).update({name: getattr(ops, name) for name in ops.__all__})
        module.__doc__ = ops.__doc__
        module.__getattr__ = ops.__getattr__


class _CorrectingLoader:
    """Run the original loader, correct the module and restore its loader."""

    def __init__(self, loader, correct: Callable):
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
    """Find the modules to correct through the finders that follow this one."""

    def __init__(self):
        self.corrections = {}
        self.load = importlib.import_module

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.corrections or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = _CorrectingLoader(spec.loader, self.correct)
                return spec
        return None

    def correct(self, module):
        ours, function = self.corrections[module.__name__]
        getattr(self.load(ours), function)(module)


class _MovedModuleFinder:
    """Find modules of ours by the names that they had before they moved."""

    def __init__(self):
        self.moved = {}

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.moved:
            return None
        return ModuleSpec(
            fullname, _FillingLoader(self.fill), origin=self.moved[fullname]
        )

    def fill(self, module):
        new_name = self.moved[module.__name__]
        moved = vars(importlib.import_module(new_name))
        vars(module).update({k: v for k, v in moved.items() if k[:2] != '__'})
        module.__doc__ = f'Moved to `{new_name}`.'


_SERVED_OPS, _CORRECTING = _ServedOpsFinder(), _CorrectingFinder()
_MOVED_MODULES = _MovedModuleFinder()


def install(
    corrections: Mapping[str, tuple[str, str]],
    load: Callable = importlib.import_module,
    moved: Mapping[str, str] | None = None,
):
    """Install the finders, and correct the modules that are imported already.

    Args:
        corrections: `AT_START` or `WITH_MMATTN`.
        load: function that imports a module of ours by its name.
        moved: new names of our modules by their old ones.
    """
    _MOVED_MODULES.moved = moved or {}
    _SERVED_OPS.load, _CORRECTING.load = load, load
    _CORRECTING.corrections = corrections
    for finder in (_SERVED_OPS, _MOVED_MODULES):
        if finder not in sys.meta_path:
            sys.meta_path.append(finder)
    if _CORRECTING not in sys.meta_path:
        sys.meta_path.insert(0, _CORRECTING)
    for name in corrections:
        if name in sys.modules:
            _CORRECTING.correct(sys.modules[name])
