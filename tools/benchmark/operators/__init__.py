"""Describe what `op.py` times: a module for each operator, with its peers.

A module has `cases(side, batch, device, dtype) -> list[Case]`, which returns the cases
of one problem on a square map. `SIDES` are the sides of a default run, and `BASELINE`
is the method that the others' `speedup` refers to. With `RECTANGLES` a side may be a
height and a width.
"""

import importlib.util
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mmattn.errors import UserError

from .case import PASSES, Case, Side, by_pass, grid_of

OPERATORS = (
    'deformable_attention',
    'landmark_attention',
    'masked_attention',
    'ms_deform_attn',
    'ms_deform_attn_decoder',
    'neighborhood_attention',
    'structure_aware_attention',
)


def load(name: str) -> ModuleType:
    """Load one of `OPERATORS`, or a module with the same interface from a file.

    Plain operators require no package of OpenMMLab.

    Raises:
        ValueError: the name is neither one of `OPERATORS` nor a file of Python.
    """
    if name in OPERATORS:
        return import_module(f'.{name}', __name__)
    path = Path(name)
    if path.suffix != '.py' or not path.is_file():
        raise UserError(f'{name!r} is neither a .py file nor one of {OPERATORS}')
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


__all__ = ['OPERATORS', 'PASSES', 'Case', 'Side', 'by_pass', 'grid_of', 'load']
