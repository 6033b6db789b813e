"""Read from a config how images are prepared for its model."""

from collections.abc import Mapping

from torch import nn

from ..engine.data import innermost_dataset
from .errors import ExportError

# Steps of test pipelines that change no pixel.
IGNORED = ('Load', 'Pack', 'Collect', 'ImageToTensor', 'ToTensor')


def image_steps(cfg: Mapping) -> dict:
    """Return `resize` and `crop` of the metadata, from the config's test pipeline.

    Raises:
        ExportError: the runner does not have a step of the pipeline, or not at its
            place. It resizes once, and then crops once.
    """
    dataset = innermost_dataset(cfg.get('test_dataloader'))
    found = dict(resize=None, crop=None)
    for step in dataset.get('pipeline') or ():
        kind = step['type'].rpartition('.')[2]
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
    factor = step.get('scale_factor')
    if step.get('scale') is None and isinstance(factor, float):
        return dict(factor=factor, **_interpolation(step))
    if step.get('scale') is None:
        raise ExportError(
            'Resize must have a `scale` or one number as `scale_factor`, got '
            f'{dict(step)}'
        )
    scale = step['scale']
    scale = [scale, scale] if isinstance(scale, int) else list(scale)
    keep = bool(step.get('keep_ratio', False))
    return dict(scale=scale, keep_ratio=keep, **_interpolation(step))


def _interpolation(step: Mapping) -> dict:
    return dict(
        interpolation=step.get('interpolation', 'bilinear'),
        backend=step.get('backend', 'cv2'),
    )


def raw_channels(cfg: Mapping) -> int | None:
    """Return the channels of images that are read as they are, None for RGB."""
    dataset = innermost_dataset(cfg.get('test_dataloader'))
    for step in dataset.get('pipeline') or ():
        if step['type'] in ('LoadChannels', 'mmattn.LoadChannels'):
            return step['channels']
    return None


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
    if channels is not None:
        if flips and channels == 3:
            raise ExportError(
                'bgr_to_rgb must be False where LoadChannels reads images'
            )
        return values | dict(channel_order='file', pad=_padding(own))
    # The pipelines read BGR.
    return values | dict(channel_order='rgb' if flips else 'bgr', pad=_padding(own))


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


def class_names(cfg: Mapping, checkpoint: Mapping | None) -> dict:
    """Return `classes` and `palette` of the metadata; None where they are unknown.

    They come from the checkpoint, else from the data set of the config. A palette has
    one color for each class, or is left out.
    """
    dataset = innermost_dataset(cfg.get('test_dataloader'))
    sources = [((checkpoint or {}).get('meta') or {}).get('dataset_meta')]
    sources += [dataset.get('metainfo'), _metainfo(dataset, cfg.get('default_scope'))]
    found = {}
    for key in ('classes', 'palette'):
        values = [source[key] for source in sources if source and source.get(key)]
        found[key] = values[0] if values else None
    classes, palette = found['classes'], found['palette']
    if classes is not None:
        classes = [classes] if isinstance(classes, str) else list(map(str, classes))
    # mmdet also takes the name of a palette, and classes of a user have no colors.
    is_list = not isinstance(palette, str | None)
    if not is_list or (classes is not None and len(palette) != len(classes)):
        return dict(classes=classes, palette=None)
    palette = [list(map(int, color)) for color in palette]
    return dict(classes=classes, palette=palette)


def _metainfo(dataset: Mapping, scope: str | None) -> Mapping:
    """Return what the class of the data set says of it."""
    from mmengine.registry import DATASETS

    if not isinstance(dataset.get('type'), str):
        return {}
    with DATASETS.switch_scope_and_registry(scope) as registry:
        found = registry.get(dataset['type'])
    return getattr(found, 'METAINFO', {})
