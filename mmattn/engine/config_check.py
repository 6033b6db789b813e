"""Finds what is wrong with a model's config before it fails in a less obvious way."""

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.util import find_spec

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS

SCOPES = 'mmattn', 'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg'


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
