from . import landmark_attention
from .case import PASSES, Case

OPERATORS = {'landmark_attention': landmark_attention}

__all__ = ['OPERATORS', 'PASSES', 'Case']
