"""Read the annotations of a COCO json: checked, completed, and alike for all readers.

What cannot be meant is an error that names the file and the annotation. What may be
meant is a note. Training, `mmattn data` and the metrics take their annotations here.
"""

from .check import check_coco, entries_of
from .outlines import count_outlines, encoded, object_area
from .read import index, numbered, read_coco
from .values import NUMBERS, is_text, read_json, shown

__all__ = [
    'NUMBERS',
    'check_coco',
    'count_outlines',
    'encoded',
    'entries_of',
    'index',
    'is_text',
    'numbered',
    'object_area',
    'read_coco',
    'read_json',
    'shown',
]
