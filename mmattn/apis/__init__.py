"""Predictions of trained models in a line of Python.

Names are imported when they are used, so that `import mmattn.apis` is light.
"""

from importlib import import_module

HOMES = {'Predictor': 'predictor', 'find_model': 'find'}
__all__ = list(HOMES)


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(import_module(f'.{HOMES[name]}', __name__), name)
    globals()[name] = value
    return value
