"""Predictions of trained models in a line of Python.

Names are imported when they are used, so that `import mmattn.apis` is light.
"""

from mmattn.on_demand import import_on_demand

HOMES = {'Predictor': '.predictor', 'find_model': '.find'}
__all__ = list(HOMES)

__getattr__ = import_on_demand(__name__, HOMES)
