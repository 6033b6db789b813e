from importlib import import_module
from types import ModuleType

from .case import PASSES, Case, Side, grid_of

OPERATORS = (
    'deformable_attention',
    'landmark_attention',
    'lisa_block',
    'masked_attention',
    'ms_deform_attn',
    'ms_deform_attn_decoder',
    'neighborhood_attention',
    'structure_aware_attention',
    'structure_aware_attention_stages',
)


def load(name: str) -> ModuleType:
    """Load one of `OPERATORS`. Plain operators require no package of OpenMMLab."""
    return import_module(f'.{name}', __name__)


__all__ = ['OPERATORS', 'PASSES', 'Case', 'Side', 'grid_of', 'load']
