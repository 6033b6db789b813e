"""Measurements of models; importing it registers the FLOP rules of our operators."""

from .attention_maps import AttentionKernels, attention_kernels
from .feature_norms import feature_norms
from .flops import CONVENTIONS, Complexity, count, paper_rows

__all__ = [
    'CONVENTIONS',
    'AttentionKernels',
    'Complexity',
    'attention_kernels',
    'count',
    'feature_norms',
    'paper_rows',
]
