"""The pipeline that loads a COCO dataset with its boxes and masks."""

import pytest

for name in ('cv2', 'pycocotools', 'tqdm'):
    pytest.importorskip(name)


LOAD_COCO = [
    {'type': 'mmdet.LoadImageFromFile'},
    {'type': 'mmdet.LoadAnnotations', 'with_bbox': True, 'with_mask': True},
    {'type': 'mmdet.PackDetInputs'},
]
