"""A model of a config: its weights, how it prepares images, and what it predicts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DefaultScope
from torch import nn

from mmattn.errors import UserError

from ..engine.data import DataError, build_dataset
from ..engine.data.checked_dataset import leaves
from ..engine.model import build_model, class_names
from ..files import file_digest
from ..files.config_files import (
    innermost_dataset,
    raw_channels,
    read_config_file,
    transform_name,
)
from ..results.samples import as_result
from ..weights.resolve import local_checkpoint
from .comparison import Images, Prediction
from .errors import ExportError

KEY = 'test_dataloader.dataset'
# Steps of test pipelines that change no pixel.
IGNORED = ('Load', 'Pack', 'Collect', 'ImageToTensor', 'ToTensor')


class ConfigModel:
    """The model of a config of mmdet, mmseg or mmpretrain.

    Args:
        config, checkpoint, cfg_options: see `mmattn.export.export_model`.

    Attributes:
        model: the module in evaluation mode.
        entries: of the metadata.

    Raises:
        ExportError: the images are prepared in a way that a runner cannot repeat.
        ValueError: the config has no model, or the checkpoint does not match it.
    """

    def __init__(self, config, checkpoint=None, cfg_options: Mapping | None = None):
        cfg = config if isinstance(config, Config) else read_config_file(config)
        cfg.merge_from_dict(dict(cfg_options or {}))
        if not cfg.get('model'):
            raise UserError(
                f'the config must have a `model`, got {cfg.filename or cfg}'
            )
        checkpoint = None if checkpoint is None else local_checkpoint(checkpoint)
        self.model, loaded = build_model(cfg, checkpoint)
        self.scope, loader = cfg.get('default_scope'), cfg.get('test_dataloader')
        self.dataset = (loader or {}).get('dataset')
        self.pipeline = innermost_dataset(loader).get('pipeline') or ()
        self.entries = dict(
            config=cfg.filename and Path(cfg.filename).name,
            checkpoint_sha256=None if checkpoint is None else file_digest(checkpoint),
            **normalization(self.model, raw_channels(cfg)),
            **image_steps(self.pipeline),
            **class_names(cfg, loaded),
        )

    def labeled(self, count: int) -> Images:
        """Return images of the test set, evenly spaced.

        Raises:
            DataError: the test set cannot be read here.
        """
        if self.dataset is None:
            raise DataError(f'the config has no {KEY}')
        with DefaultScope.overwrite_default_scope(self.scope):
            built = build_dataset(self.dataset, KEY, download=False)
        _, dataset = next(leaves(built, KEY))
        total = len(dataset)
        count = min(count, total)
        indices = ((np.arange(count) + 0.5) * total // count).astype(int).tolist()
        infos = [dataset.get_data_info(i) for i in indices]
        paths = [info.get('img_path') for info in infos]
        missing = [path for path in paths if not (path and Path(path).is_file())]
        if missing:
            raise DataError(f'{KEY}: there is no image at {missing[0]}')
        return Images(
            f'{count} of {total} images of {KEY}',
            paths,
            lambda i: dataset[indices[i]],
            [info.get('instances') for info in infos],
        )

    def given(self, paths: Sequence[str | Path]) -> Images | None:
        """Return images without annotations, None where the config prepares none."""
        if not self.pipeline:
            return None
        steps = [
            step
            for step in self.pipeline
            if not transform_name(step).startswith('LoadAnnotations')
        ]
        with DefaultScope.overwrite_default_scope(self.scope):
            pipeline = Compose(steps)
        return Images(
            f'{len(paths)} images',
            list(map(str, paths)),
            lambda i: pipeline(dict(img_path=str(paths[i]), img_id=0)),
        )

    @torch.no_grad()
    def predictions(self, images: Images) -> Iterator[Prediction]:
        """Yield what PyTorch predicts for images that the test pipeline prepares."""
        names = self.entries['classes'], self.entries['palette']
        with DefaultScope.overwrite_default_scope(self.scope):
            for i, path in enumerate(images.paths):
                packed = images.packed(i)
                batch = pseudo_collate([packed])
                tensor = self.model.data_preprocessor(batch, False)['inputs']
                (output,) = self.model.test_step(batch)
                size = output.ori_shape[:2]
                yield Prediction(
                    path,
                    as_result(output, *names, size),
                    packed['inputs'].shape[-2:],
                    tensor.shape[-2:],
                    packed['data_samples'],
                    images.instances and images.instances[i],
                )


def image_steps(pipeline: Sequence[Mapping]) -> dict:
    """Return `resize` and `crop` of the metadata, from the steps of a test pipeline.

    Raises:
        ExportError: the runner does not have a step of the pipeline, or not at its
            place. It resizes once, and then crops once.
    """
    found = dict(resize=None, crop=None)
    for step in pipeline:
        kind = transform_name(step)
        is_first = not any(found.values())
        if kind == 'Resize' and is_first:
            found['resize'] = _resize(step)
        elif kind == 'ResizeEdge' and is_first and step.get('edge', 'short') == 'short':
            found['resize'] = dict(short_side=step['scale'], **_interpolation(step))
        elif kind == 'CenterCrop' and not (found['crop'] or step.get('auto_pad')):
            size = step['crop_size']
            crop = [size, size] if isinstance(size, int) else [size[1], size[0]]
            found['crop'] = crop
        elif not kind.startswith(IGNORED):
            raise ExportError(
                f'the test pipeline has the step {dict(step)}, which the runner of '
                'exported files does not have'
            )
    return found


def _resize(step: Mapping) -> dict:
    scale, factor = step.get('scale'), step.get('scale_factor')
    if scale is None:
        if not isinstance(factor, float):
            raise ExportError(
                'Resize must have a `scale` or one number as `scale_factor`, got '
                f'{dict(step)}'
            )
        return dict(factor=factor, **_interpolation(step))
    scale = [scale, scale] if isinstance(scale, int) else list(scale)
    keep = bool(step.get('keep_ratio', False))
    return dict(scale=scale, keep_ratio=keep, **_interpolation(step))


def _interpolation(step: Mapping) -> dict:
    return dict(
        interpolation=step.get('interpolation', 'bilinear'),
        backend=step.get('backend', 'cv2'),
    )


def normalization(model: nn.Module, channels: int | None = None) -> dict:
    """Return `mean`, `std`, `channel_order` and `pad` of the metadata.

    Args:
        model: with a `data_preprocessor`.
        channels: what `raw_channels` returns.

    Raises:
        ExportError: the model has no preprocessor of such images.
    """
    own = getattr(model, 'data_preprocessor', None)
    flips = getattr(own, '_channel_conversion', None)
    if flips is None:
        flips = getattr(own, 'to_rgb', getattr(own, 'channel_conversion', None))
    if flips is None:
        raise ExportError(
            f'the data_preprocessor {type(own).__name__} cannot be exported'
        )
    values = {}
    for name, default in (('mean', 0.0), ('std', 1.0)):
        value = getattr(own, name, None)
        value = [default] if value is None else value.flatten().tolist()
        values[name] = value * (channels or 3) if len(value) == 1 else value
        if len(values[name]) != (channels or 3):
            raise ExportError(
                f'`{name}` of the data_preprocessor has {len(values[name])} numbers, '
                f'and images have {channels or 3} channels'
            )
    order = 'rgb' if flips else 'bgr'  # the pipelines read BGR
    if channels is not None:
        order = 'file'
        if flips and channels == 3:
            raise ExportError(
                'bgr_to_rgb must be False where LoadChannels reads images'
            )
    return values | dict(channel_order=order, pad=_padding(own))


def _padding(preprocessor: nn.Module) -> dict:
    test = getattr(preprocessor, 'test_cfg', None)
    if test is not None or hasattr(preprocessor, 'size_divisor'):  # mmseg
        test = test or {}
        if test.get('size') is not None:
            raise ExportError('padding to `test_cfg.size` cannot be exported')
        return dict(divisor=test.get('size_divisor') or 1, value=preprocessor.pad_val)
    return dict(
        divisor=getattr(preprocessor, 'pad_size_divisor', 1) or 1,
        value=getattr(preprocessor, 'pad_value', 0),
    )
