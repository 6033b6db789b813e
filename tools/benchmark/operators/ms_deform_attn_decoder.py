"""Multi-scale deformable attention of a decoder: 300 queries anywhere in the image.

Maps, heads, points and methods are the same as in `ms_deform_attn`.
"""

from functools import partial

from . import ms_deform_attn
from .ms_deform_attn import BASELINE, SIDES

__all__ = ['BASELINE', 'SIDES', 'cases']

cases = partial(ms_deform_attn.cases, queries=300)
