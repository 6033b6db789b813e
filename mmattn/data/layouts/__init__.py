"""Find the images, the annotations and the splits of a data set as it comes."""

from .leaks import leaks
from .parts import Part, find_parts
from .splits import split

__all__ = ['Part', 'find_parts', 'leaks', 'split']
