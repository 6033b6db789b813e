"""Describe what `op.py` times: a module for each operator, with its peers.

A module has `cases(grid, batch, device, dtype) -> list[Case]`, which returns the cases
of one problem on a map of a height and a width. `SIDES` has the maps of a default run,
as the option --sides takes them, and `BASELINE` is the method that the others'
`speedup` refers to.
"""

import importlib.util
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mmattn.errors import UserError

from .case import PASSES, Case, Grid, by_pass

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


__all__ = ['OPERATORS', 'PASSES', 'Case', 'Grid', 'by_pass', 'load']
