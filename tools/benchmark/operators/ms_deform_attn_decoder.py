"""Multi-scale deformable attention of a decoder: 300 queries anywhere in the image.

Maps, heads, points and methods are the same as in `ms_deform_attn`.
"""

import torch

from .case import Case, Side
from .ms_deform_attn import BASELINE, RECTANGLES, SIDES, cases_of_queries

__all__ = ['BASELINE', 'RECTANGLES', 'SIDES', 'cases']

QUERIES = 300


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    return cases_of_queries(side, batch, device, dtype, queries=QUERIES)
