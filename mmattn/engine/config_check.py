"""Check a model's config before it fails in a less obvious way."""

import logging
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec

import torch
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import print_log
from mmengine.registry import MODELS
from torch import Tensor, nn

SCOPES = 'mmattn', 'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg'
# Necks that take one map of the backbone for each of their `in_channels`.
NECKS = {'FPN', 'PAFPN', 'FPN_CARAFE', 'ChannelMapper', 'MSDeformAttnNeck'}
IMAGE = 1, 3, 64, 64
# The forward of another package's backbone may raise these for such an image.
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def check_scopes(cfg: dict, key: str):
    """Raise an error if a `type` in a config has a scope that looks misspelled.

    Raises:
        ValueError: a scope looks misspelled; the message names its key and a guess.
    """
    for place, name in _types(cfg, key):
        scope = name.partition('.')[0]
        if scope == name or scope in {*SCOPES, *MODULE2PACKAGE, *MODELS.children}:
            continue
        close = get_close_matches(scope.lower(), SCOPES, n=1, cutoff=0.75)
        if close and scope.isidentifier() and find_spec(scope) is None:
            meant = close[0] + name.removeprefix(scope)
            raise ValueError(
                f'{place}.type is {name!r}, but there is no package {scope!r}: did you '
                f'mean {meant!r}?'
            )


def _types(value, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if isinstance(value.get('type'), str):
            yield key, value['type']
        for name, item in value.items():
            yield from _types(item, f'{key}.{name}')
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _types(item, f'{key}.{index}')


def check_neck(cfg: dict, model: nn.Module):
    """Raise an error if the maps of a built model's backbone do not fit its neck.

    Only necks and models of the mm packages and ours are checked, since others may use
    their backbone in another way.

    Raises:
        ValueError: the channels differ; the message has both lists.
    """
    neck = cfg.get('neck')
    backbone = getattr(model, 'backbone', None)
    if (
        not isinstance(neck, dict)
        or not isinstance(neck.get('in_channels'), list | tuple)
        or type(getattr(model, 'neck', None)).__name__ not in NECKS
        or not all(map(_is_known, (model, model.neck, backbone)))
    ):
        return
    expected, channels = list(neck['in_channels']), output_channels(backbone)
    if channels is None:
        return
    # An FPN may leave out levels, whose channels it never reads.
    start = getattr(model.neck, 'start_level', 0)
    used = slice(start, getattr(model.neck, 'backbone_end_level', None))
    if len(channels) != len(expected) or channels[used] != expected[used]:
        raise ValueError(
            f'model.neck.in_channels is {expected}, but model.backbone '
            f'({type(backbone).__name__}) returns {len(channels)} maps of {channels} '
            'channels: set model.neck.in_channels to these, or out_indices of the '
            'backbone to the maps that are meant'
        )


def _is_known(module: nn.Module) -> bool:
    return type(module).__module__.partition('.')[0] in SCOPES


@torch.no_grad()
def output_channels(backbone: nn.Module) -> list[int] | None:
    """Return the channels of the maps that a backbone makes of a small image.

    Return None if they are unknown: the backbone takes no images, its outputs are not
    maps, or its forward fails, which is logged.
    """
    parameter = next(backbone.parameters(), None)
    if parameter is None or not parameter.is_floating_point():
        return None
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    image = parameter.new_zeros(IMAGE)
    try:
        with torch.random.fork_rng(devices=[]):
            # A plain call would compile a backbone with `compile=True`.
            maps = backbone.forward(image)
    except FAILURES as error:
        print_log(
            f'the channels of {type(backbone).__name__} are unknown: on an image of '
            f'shape {IMAGE} it raises {type(error).__name__}: {error}',
            logger='current',
            level=logging.WARNING,
        )
        return None
    finally:
        for module, mode in modes:
            module.training = mode
    if not isinstance(maps, list | tuple) or not all(
        isinstance(m, Tensor) and m.dim() == 4 for m in maps
    ):
        return None
    return [m.shape[1] for m in maps]
