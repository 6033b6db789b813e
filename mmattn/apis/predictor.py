"""Predict objects, label maps or classes of images in a line of Python."""

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm import tqdm

from mmattn.errors import UserError

from ..images import MAX_MEGAPIXELS
from ..results import Classification, Detections, Segmentation
from ..weights.read import trusted_checkpoints
from .find import find_model
from .sources import count, expand, pictures

if TYPE_CHECKING:
    from mmengine.config import Config

Result = Detections | Segmentation | Classification
SHRUNK = 2  # times, from which a user is told
LOGGER = logging.getLogger('mmattn')


class Predictor:
    """Run a trained detector, segmentor or classifier on images.

    Results are in the pixels of the original image, whatever the model sees.

    Args:
        model: work dir of a run; a config, its path or its name; a checkpoint in a work
            dir; or an exported file (.onnx, .pt2 or .xml). A name stands for one of our
            configs ('mmattn::mask_rcnn/ivit_t_3x_coco.py' or 'ivit_t_3x_coco'), for
            one of another package ('mmdet::...'), or for weights ('pvt_v2_b2', or
            'mmattn://hela-ivit-n', which `make demo` writes).
        weights: path, name or address of weights, which must match the model exactly;
            `mmattn.weights.resolve` lists the names. A work dir also supports 'best'
            and 'last', and defaults to the best one, else the last. 'random' keeps
            random weights.
        device: such as 'cpu' or 'cuda:0'; None selects a GPU if there is one.
        cfg_options: entries of the config to override.
        config: the config of a work dir or a checkpoint, which runs as code. By default
            the run's own is read as data.
        trust_checkpoint: let the checkpoint run the code that it contains while it is
            read. By default such a checkpoint, and every .pt2 file, is refused.

    Attributes:
        task: 'detection', 'segmentation' or 'classification'.
        classes: names of the classes, or None.
        palette: colors of the classes, or None.
        weights: path or address of the weights, None for random ones.

    Raises:
        FileNotFoundError: there is no such config, run, checkpoint or file.
        ValueError: the weights do not match the model, or there are none.

    Example:
        >>> from mmattn.apis import Predictor
        >>> predict = Predictor('work_dirs/mask_rcnn_ivit_n_hela')  # doctest: +SKIP
        >>> found = predict('image.png').above(0.5)  # doctest: +SKIP
        >>> found.boxes, found.masks, found.names  # doctest: +SKIP
        >>> for found in predict('images/', batch_size=4): ...  # doctest: +SKIP
    """

    def __init__(
        self,
        model: 'str | Path | Config',
        weights: str | Path | None = None,
        device: str | None = None,
        *,
        cfg_options: Mapping | None = None,
        config: str | Path | None = None,
        trust_checkpoint: bool = False,
    ):
        found = find_model(model, weights, cfg_options, config)
        with trusted_checkpoints(trust_checkpoint):
            self.model = _open(found, device, trust_checkpoint)
        self.name, self.weights = found.name, found.weights
        self.task = self.model.task
        self.classes, self.palette = self.model.classes, self.model.palette
        self._told = False

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}({self.name!r}, weights={self.weights!r}, '
            f'device={self.model.device!r}, task={self.task!r})'
        )

    def __call__(self, images: Any, **options) -> Result | list[Result]:
        """Return the result of an image, or a list for several images.

        Args:
            images: a uint8 array of shape (H, W, 3) in RGB (with a model of
                `LoadChannels`, an array of its channels), a PIL image, the path of an
                image, a video or a folder, a pattern such as 'images/**/*.jpg', an
                address of http or https, or a list of these.
            **options: see `stream`.

        Returns:
            `Detections`, `Segmentation` or `Classification`. A folder, a pattern, a
            video and a list return a list in the order of the files, frames or items.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: there is no image in a folder, or one cannot be read.
        """
        items, single = expand(images)
        results = [result for _, result in self.stream(items, **options)]
        return results[0] if single else results

    def stream(
        self,
        images: Any,
        *,
        batch_size: int = 1,
        scale: float | None = None,
        tile: int | tuple[int, int] | None = None,
        overlap: float = 0.2,
        score: float = 0.0,
        nms_iou: float | None = None,
        progress: bool = False,
        skip_broken: bool = False,
        max_megapixels: float = MAX_MEGAPIXELS,
    ) -> Iterator[tuple[np.ndarray, Result]]:
        """Yield each image, as an RGB array, with its result.

        Nothing is kept, so that a video or a large folder needs the memory of a batch.

        Args:
            images: see `__call__`.
            batch_size: images that run at a time, if their sizes agree.
            scale: factor of the image's sides, in place of the resize of the test
                pipeline; 1 keeps the original size. It defaults to the pipeline's.
            tile: side of the tiles that an image is cut into, or their height and
                width; `mmattn.apis.tiles` describes how they are merged. By default
                images run whole.
            overlap: share of a tile that it has in common with the next.
            score: leaves out objects with a lower score; objects in tiles before they
                are merged.
            nms_iou: of two objects of a class whose boxes overlap by more than this
                IoU, from 0 to 1, leave out the one with the lower score, in whole
                images also after tiles are merged. By default the model's own
                suppression is all.
            progress: whether to show a progress bar.
            skip_broken: whether to warn of any file that cannot be read, instead of
                failing. Files in a folder that are no image are always skipped.
            max_megapixels: height times width of a file, in millions. With `tile`, a
                file of more than 89 is read window by window and yielded as a
                `WindowedImage`.
        """
        self._check(batch_size, scale, tile, nms_iou)
        items, _ = expand(images)
        limits = dict(max_megapixels=max_megapixels, windows=tile is not None)
        found = pictures(items, skip_broken, self.model.channels, **limits)
        with tqdm(
            total=count(items) if progress else None, unit='image', disable=not progress
        ) as bar:
            while batch := list(islice(found, batch_size)):
                arrays = [each.pixels for each in batch]
                if tile is None:
                    self._tell_of_shrinking(arrays[0], scale)
                    results = self.model(arrays, scale)
                    if score > 0 and self.task == 'detection':
                        results = [each.above(score) for each in results]
                else:
                    from .tiles import predict_tiles

                    options = dict(scale=scale, batch_size=batch_size, score=score)
                    results = [
                        predict_tiles(self.model, each, tile, overlap, **options)
                        for each in arrays
                    ]
                if nms_iou is not None:
                    results = [without_overlaps(each, nms_iou) for each in results]
                for picture, result in zip(batch, results, strict=True):
                    result.source = picture.source
                    yield picture.pixels, result
                bar.update(len(batch))

    def _check(self, batch_size: int, scale: float | None, tile, nms_iou):
        if type(batch_size) is not int or batch_size < 1:
            raise UserError(
                f'`batch_size` must be a positive integer, got {batch_size}'
            )
        if scale is not None and not scale > 0:
            raise UserError(f'`scale` must be positive, got {scale}')
        if nms_iou is not None and not 0 <= nms_iou <= 1:
            raise UserError(f'`nms_iou` must be from 0 to 1, got {nms_iou}')
        if nms_iou is not None and self.task != 'detection':
            raise UserError(
                f'`nms_iou` is for detection, but {self.name} does {self.task}'
            )
        given = dict(scale=scale, tile=tile)
        used = [name for name, value in given.items() if value is not None]
        if used and self.task == 'classification':
            raise UserError(
                f'`{used[0]}` is for detection and segmentation, but {self.name} '
                'classifies whole images'
            )

    def _tell_of_shrinking(self, image: np.ndarray, scale: float | None):
        """Warn once if the model sees far less than the image has."""
        if self._told or scale is not None or self.task == 'classification':
            return
        self._told = True
        size = self.model.prepared_size(image)
        factor = max(old / new for old, new in zip(image.shape, size, strict=False))
        if factor >= SHRUNK:
            LOGGER.warning(
                'the test pipeline shrinks the first image %.1f times, from %d x %d to '
                '%d x %d pixels, so that small objects may vanish; `scale=1` keeps the '
                'size, and `tile` cuts the image',
                factor,
                *image.shape[1::-1],
                *size[::-1],
            )


def without_overlaps(found: Detections, iou: float) -> Detections:
    """Return the objects that no better one of their class overlaps by more than IoU.

    It is torchvision's non-maximum suppression.
    """
    from torchvision.ops import batched_nms

    boxes, scores, labels = map(
        torch.from_numpy, (found.boxes, found.scores, found.labels)
    )
    return found[batched_nms(boxes, scores, labels, iou).tolist()]


def _open(found, device: str | None, trust_checkpoint: bool):
    if found.cfg is None:
        from .file_model import FileModel

        return FileModel(found.weights, device, trust_checkpoint)
    from .config_model import ConfigModel

    return ConfigModel(found, device)
