"""Finds what is wrong with a model's config before it fails in a less obvious way."""

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec

import torch
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS
from torch import Tensor, nn

SCOPES = 'mmattn', 'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg'
# They take one map of the backbone for each of their `in_channels`.
NECKS = {'FPN', 'PAFPN', 'FPN_CARAFE', 'ChannelMapper', 'MSDeformAttnNeck'}
IMAGE = 1, 3, 64, 64


def check_scopes(cfg: dict, key: str):
    """Raises if a `type` in a config has a scope that looks like a misspelled one.

    Raises:
        ValueError: names the key and the scope that may be meant.
    """
    for place, name in _types(cfg, key):
        scope = name.partition('.')[0]
        if scope == name or scope in {*SCOPES, *MODULE2PACKAGE, *MODELS.children}:
            continue
        close = get_close_matches(scope.lower(), SCOPES, n=1, cutoff=0.75)
        if close and scope.isidentifier() and find_spec(scope) is None:
            meant = close[0] + name.removeprefix(scope)
            raise ValueError(
                f'{place}.type is {name!r}, and there is no package {scope!r}: did you '
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
    """Raises if the maps of a built model's backbone do not fit its neck.

    Only necks and models of the mm packages and ours are looked at, since others may
    use their backbone in another way.

    Raises:
        ValueError: names `model.neck.in_channels`, with both lists.
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
    # An FPN may leave out levels, of which it never looks at the channels.
    start = getattr(model.neck, 'start_level', 0)
    used = slice(start, getattr(model.neck, 'backbone_end_level', None))
    if len(channels) != len(expected) or channels[used] != expected[used]:
        raise ValueError(
            f'model.neck.in_channels is {expected}, and model.backbone '
            f'({type(backbone).__name__}) returns {len(channels)} maps of {channels} '
            'channels: set model.neck.in_channels to these, or out_indices of the '
            'backbone to the maps that are meant'
        )


def _is_known(module: nn.Module) -> bool:
    return type(module).__module__.partition('.')[0] in SCOPES


@torch.no_grad()
def output_channels(backbone: nn.Module) -> list[int] | None:
    """Return the channels of the maps that a backbone makes of a small image.

    None where that cannot be known: the backbone takes something else, or returns
    something else than maps.
    """
    parameter = next(backbone.parameters(), None)
    if parameter is None or not parameter.is_floating_point():
        return None
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    image = parameter.new_zeros(IMAGE)
    try:
        with torch.random.fork_rng(devices=[]):
            # Not by calling it, which would compile a backbone with `compile=True`.
            maps = backbone.forward(image)
    except Exception:  # noqa: BLE001  a backbone of others may want anything else
        return None
    finally:
        for module, mode in modes:
            module.training = mode
    if not isinstance(maps, list | tuple) or not all(
        isinstance(m, Tensor) and m.dim() == 4 for m in maps
    ):
        return None
    return [m.shape[1] for m in maps]
