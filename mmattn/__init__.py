"""mmattn: efficient-attention backbones for dense prediction on OpenMMLab."""

import sys
from importlib import import_module

from mmattn.compat import activate

__version__ = '0.3.0'

# `mmattn.IViT` and the other backbones, and these functions, require torch. They are
# imported when they are used.
_BACKBONES = 'mmattn.models.backbones'
_FUNCTIONS = {
    'accelerate': 'mmattn.integrations.accelerate',
    'create_model': 'mmattn.models',
    'finetune': 'mmattn.apis.finetune',
    'list_models': 'mmattn.models',
    'restore': 'mmattn.integrations.accelerate',
    'torchvision_fpn': 'mmattn.integrations.torchvision',
}
__all__ = ['__version__', *_FUNCTIONS]


def __getattr__(name: str):
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    if name[:1].isupper():
        backbones = import_module(_BACKBONES)
        if name in backbones.__all__:
            return getattr(backbones, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    backbones = sys.modules.get(_BACKBONES)
    return sorted([*globals(), *_FUNCTIONS, *(backbones.__all__ if backbones else ())])


activate()
