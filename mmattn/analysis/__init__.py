"""Measurements of models; importing it registers the FLOP rules of our operators."""

from .flops import Complexity, count, paper_rows

__all__ = ['Complexity', 'count', 'paper_rows']
