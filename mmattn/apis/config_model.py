"""Run the model of a config on images, by its test pipeline."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.device import get_device
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import TRANSFORMS, DefaultScope
from torch import Tensor, nn

from mmattn.errors import UserError, check_choice

from ..engine.model import build_model, class_names
from ..files.config_files import innermost_dataset, raw_channels, transform_name
from ..models.limits import detection_limits, reached_limits
from ..results import SCORE
from ..results.samples import as_result
from .find import Found
from .placement import RESIZES, Placement, picture_of

TASKS = {
    'mmdet': 'detection',
    'mmpretrain': 'classification',
    'mmseg': 'segmentation',
}
# The default scope of mmengine is one for all threads.
LOGGER = logging.getLogger('mmattn')
LOCK = threading.RLock()


@dataclass(frozen=True)
class ModelInput:
    """An image as the model sees it.

    Attributes:
        inputs: normalized and padded, shape (1, 3, H, W).
        picture: the same before normalization, RGB uint8, shape (H, W, 3).
        size: height and width without padding.
        place: maps pixels of the image to pixels of `inputs`.
        samples: the image's sample after the preprocessor, None if there is none.
        run: runs the whole model on the image.
    """

    inputs: Tensor
    picture: np.ndarray
    size: tuple[int, int]
    place: Placement
    samples: list | None
    run: Callable[[], list]


class ConfigModel:
    """The model of a config with its weights, and its test pipeline.

    Images of the same size after the pipeline run as one batch, so that no padding
    depends on their neighbors. Threads take turns.

    Args:
        found: config and weights.
        device: such as 'cpu' or 'cuda:0'; None selects a GPU if there is one.

    Attributes:
        task: 'detection', 'segmentation' or 'classification'.
        classes: names of the classes, or None.
        palette: colors of the classes, or None.
        model: the module, in evaluation mode.
        cfg: the config.
        channels: of images that are read as they are, None for RGB in uint8.

    Raises:
        ValueError: the weights do not match the model exactly, the config has no test
            pipeline that can run on arrays, or the device cannot be used.
    """

    def __init__(self, found: Found, device: str | None = None):
        self.cfg = found.cfg
        self.scope = self.cfg.get('default_scope')
        check_choice(f'default_scope of {found.name}', self.scope, TASKS)
        self.task = TASKS[self.scope]
        self.steps, self.to_float32 = _steps(self.cfg, found.name)
        self.channels = raw_channels(self.cfg)
        self._pipelines = {}
        self._limits = detection_limits(self.cfg.model)
        self.device = usable_device(device)
        with self.default_scope():
            model, loaded = build_model(self.cfg, found.weights)
            names = class_names(self.cfg, loaded)
        self.model = revert_sync_batchnorm(model).to(self.device)
        self.classes, self.palette = names['classes'], names['palette']

    def __call__(
        self, images: Sequence[np.ndarray], scale: float | None = None
    ) -> list:
        """Return the result of each image.

        Args:
            images: each of shape (H, W, 3), uint8 RGB.
            scale: factor of the sides, in place of the pipeline's resize.
        """
        packed = [self.prepare(image, scale) for image in images]
        results = []
        for _, group in groupby(packed, lambda each: each['inputs'].shape):
            results += self._run(list(group))
        pairs = zip(results, images, strict=True)
        found = [
            as_result(each, self.classes, self.palette, image.shape[:2])
            for each, image in pairs
        ]
        if self.task == 'detection':
            self._tell_of_limits(found)
        return found

    def _tell_of_limits(self, found: list):
        """Warn once of each limit of the detector that images reach."""
        counts = [len(each) for each in found]
        sure = [int((each.scores >= SCORE).sum()) for each in found]
        for key in list(self._limits):
            for note in reached_limits({key: self._limits[key]}, counts, sure):
                LOGGER.warning('%s', note)
                del self._limits[key]

    @contextmanager
    def default_scope(self):
        """Set mmengine's default scope; other threads wait meanwhile."""
        with LOCK, DefaultScope.overwrite_default_scope(self.scope):
            yield

    def _run(self, packed: list[dict]) -> list:
        with torch.no_grad(), self.default_scope():
            return self.model.test_step(pseudo_collate(packed))

    def prepare(self, image: np.ndarray, scale: float | None = None) -> dict:
        """Return `inputs` and `data_samples` of an image, as a data set does."""
        return self._prepare(image, scale)[0]

    def inspect(
        self, image: np.ndarray, read: Callable[[nn.Module, ModelInput], Any]
    ) -> Any:
        """Return what `read` returns for the model and the prepared image.

        No other thread runs the model meanwhile, so that `read` may add hooks to it.

        Args:
            image: shape (H, W, 3), uint8 RGB.
            read: takes the model, in evaluation mode, and its input.

        Raises:
            ValueError: the pipeline moves pixels in a way that is not known, or the
                model has no backbone.
        """
        if not hasattr(self.model, 'backbone'):
            raise UserError(f'{type(self.model).__name__} has no backbone')
        packed, changes = self._prepare(image, None)
        place = Placement(image.shape[:2], image.shape[:2])
        for transform, size in changes:
            place.follow(transform, size)
        with torch.no_grad(), self.default_scope():
            batch = pseudo_collate([packed])
            data = self.model.data_preprocessor(batch, False)
            tensor, samples = data['inputs'], data.get('data_samples')
            picture = picture_of(packed['inputs'], tensor.shape[-2:])
            size = tuple(packed['inputs'].shape[-2:])

            def run() -> list:
                return self._run([packed])

            view = ModelInput(tensor, picture, size, place, samples, run)
            return read(self.model, view)

    def _prepare(
        self, image: np.ndarray, scale: float | None
    ) -> tuple[dict, list[tuple[str, tuple[int, int]]]]:
        """Return what the pipeline packs, and the transforms that changed the size."""
        if self.channels is None:
            image = np.ascontiguousarray(image[:, :, ::-1])  # the pipelines read BGR
        size = image.shape[:2]
        packed = dict(
            img=image.astype(np.float32) if self.to_float32 else image,
            img_path=None,
            img_id=0,
            img_shape=size,
            ori_shape=size,
            scale_factor=(1.0, 1.0),
            seg_fields=[],
        )
        changes = []
        with self.default_scope():
            for step in self._pipeline(scale):
                packed = step(packed)
                moved = packed.get('flip', False)
                if 'img' in packed and (moved or packed['img'].shape[:2] != size):
                    size = packed['img'].shape[:2]
                    changes.append((type(step).__name__, size))
        return packed, changes

    def prepared_size(
        self, image: np.ndarray, scale: float | None = None
    ) -> tuple[int, int]:
        """Return the height and width that the model sees, without padding."""
        return tuple(self.prepare(image, scale)['inputs'].shape[-2:])

    def _pipeline(self, scale: float | None) -> list:
        if scale not in self._pipelines:
            steps = self.steps if scale is None else list(_scaled(self.steps, scale))
            self._pipelines[scale] = [TRANSFORMS.build(dict(step)) for step in steps]
        return self._pipelines[scale]


def usable_device(device: str | None) -> str:
    """Return a device on which PyTorch can put tensors; None selects one.

    Raises:
        ValueError: there is no such device, or this PyTorch does not support it.
    """
    device = device or get_device()
    try:
        torch.empty(0, device=device)
    # PyTorch without CUDA raises an AssertionError.
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason = str(error).strip().partition('\n')[0] or type(error).__name__
        raise UserError(
            f'`device` {device!r} cannot be used ({reason}). This PyTorch '
            f'{torch.__version__} finds {torch.cuda.device_count()} CUDA GPUs: leave '
            "out `device`, or pass 'cpu'"
        ) from error
    return device


def _steps(cfg: Config, name: str) -> tuple[list[Mapping], bool]:
    """Return the test pipeline without loading, and whether it loads float32."""
    dataset = innermost_dataset(cfg.get('test_dataloader'))
    if not dataset.get('pipeline'):
        raise UserError(f'{name} has no test_dataloader.dataset.pipeline')
    named = [(transform_name(step), step) for step in dataset['pipeline']]
    loaders = 'LoadImage', 'LoadImageFromFile'
    images = [step for name, step in named if name in loaders]
    colors = {step.get('color_type', 'color') for step in images}
    if colors - {'color'}:
        raise UserError(
            f'the test pipeline of {name} reads images of color_type '
            f"{colors.pop()!r}; only 'color' is supported"
        )
    steps = [step for name, step in named if not name.startswith('Load')]
    return steps, any(step.get('to_float32', False) for step in images)


def _scaled(steps: Sequence[Mapping], scale: float) -> Iterable[Mapping]:
    """Yield the steps with a factor in place of what resizes images."""
    resizes = [step for step in steps if transform_name(step) in RESIZES]
    if scale != 1:
        interpolation = {}
        if resizes and 'interpolation' in resizes[0]:
            interpolation = dict(interpolation=resizes[0]['interpolation'])
        yield dict(
            type='Resize', scale_factor=float(scale), keep_ratio=True, **interpolation
        )
    yield from (step for step in steps if step not in resizes)
