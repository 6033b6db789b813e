"""Read objects annotated as COCO, YOLO, Pascal VOC or LabelMe files.

Each reader returns the content of a COCO json, which `coco_json` then checks, so that
what is wrong with a box or an outline is found alike in all formats.
"""

from .objects import read_objects

__all__ = ['read_objects']
