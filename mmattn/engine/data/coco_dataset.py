"""COCO data sets that train on some of the images without objects."""

import numpy as np
from mmdet.datasets import CocoDataset as MMDetCocoDataset
from mmengine.logging import MMLogger

from mmattn.errors import UserError
from mmattn.registry import DATASETS


@DATASETS.register_module()
class CocoDataset(MMDetCocoDataset):
    """Keep a share of the images without objects, where mmdet's data set drops all.

    Such images teach a detector what is no object. Those that are kept are spread
    evenly over the file. `filter_cfg=dict(filter_empty_gt=False)` keeps all, and so
    does `test_mode`.

    Args:
        background: largest share of images without objects, from 0 to below 1.
        kwargs: arguments of mmdet's CocoDataset.

    Raises:
        ValueError: `background` is out of range.
    """

    def __init__(self, *args, background: float = 0.1, **kwargs):
        if not 0 <= background < 1:
            raise UserError(
                f'background must be a share from 0 to below 1, got {background}'
            )
        self.background = background
        super().__init__(*args, **kwargs)

    def filter_data(self) -> list[dict]:
        kept = super().filter_data()
        filters = self.filter_cfg or {}
        if self.test_mode or not filters.get('filter_empty_gt', False):
            return kept
        ids = {info['img_id'] for info in kept}
        self.filter_cfg = {**filters, 'filter_empty_gt': False}
        try:
            large = super().filter_data()
        finally:
            self.filter_cfg = filters
        empty = [info['img_id'] for info in large if info['img_id'] not in ids]
        if not empty:
            return kept
        most = round(len(kept) * self.background / (1 - self.background))
        places = np.linspace(0, len(empty) - 1, min(most, len(empty)), dtype=int)
        ids |= {empty[place] for place in places}
        MMLogger.get_current_instance().info(
            f'{self.ann_file}: {len(empty)} of {len(large)} images have no object, and '
            f'{len(places)} of these are kept (background={self.background})'
        )
        return [info for info in large if info['img_id'] in ids]
