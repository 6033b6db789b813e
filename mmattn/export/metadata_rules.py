"""Rules for the metadata of exported files, which may come from anywhere."""

from collections.abc import Callable
from functools import partial
from typing import Any

TASKS = ('features', 'classification', 'segmentation', 'detection')
MAX_SIDE = 2**20  # pipelines write 99999 for a side without a limit
MAX_NUMBER = 1e9

Check = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    return type(value) is str


def is_flag(value: Any) -> bool:
    return type(value) is bool


def is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIDE


def is_byte(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 255


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, and not huge."""
    return type(value) in (int, float) and -MAX_NUMBER <= value <= MAX_NUMBER


def is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def is_fraction(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def is_choice(value: Any, accepted: tuple) -> bool:
    return type(value) in map(type, accepted) and value in accepted


def is_list(value: Any, is_item: Check, length: int | None = None) -> bool:
    """Return whether a value is a list of valid items, of a length if it is given."""
    is_long = type(value) is list and length in (None, len(value))
    return is_long and all(map(is_item, value))


def is_names(value: Any) -> bool:
    return is_list(value, is_text) and len(value) > 0


def is_dict(value: Any, checks: dict[str, Check]) -> bool:
    """Return whether a value is a dict of these keys with valid values."""
    same_keys = type(value) is dict and set(value) == set(checks)
    return same_keys and all(check(value[key]) for key, check in checks.items())


def is_none(value: Any) -> bool:
    return value is None


def any_of(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def choice(*accepted: Any) -> tuple[Check, str]:
    return partial(is_choice, accepted=accepted), f'one of {list(accepted)}'


is_size = partial(is_list, is_item=is_count, length=2)
is_color = partial(is_list, is_item=is_byte, length=3)
INTERPOLATION = dict(interpolation=is_text, backend=is_text)
TO_SCALE = INTERPOLATION | dict(scale=is_size, keep_ratio=is_flag)
TO_SHORT_SIDE = INTERPOLATION | dict(short_side=is_count)
BY_FACTOR = INTERPOLATION | dict(factor=is_positive)
PADDING = dict(divisor=is_count, value=is_number)
RESIZE = (
    is_none,
    partial(is_dict, checks=TO_SCALE),
    partial(is_dict, checks=TO_SHORT_SIDE),
    partial(is_dict, checks=BY_FACTOR),
)
# Check of each attribute, and what it accepts.
RULES = {
    'task': choice(*TASKS),
    'inputs': choice(['image'], ['image', 'image_size']),
    'outputs': (is_names, 'names'),
    'shape': (is_size, 'a height and a width'),
    'batch': (is_count, 'a positive number'),
    'dynamic': choice(None, 'batch', 'size'),
    'least': (any_of(is_none, is_size), 'null, or a height and a width'),
    'mean': (partial(is_list, is_item=is_number), 'numbers'),
    'std': (partial(is_list, is_item=is_positive), 'positive numbers'),
    'channel_order': choice('rgb', 'bgr', 'file'),
    'normalized': choice(False, True),
    'input_dtype': choice('float32', 'uint8'),
    'resize': (
        any_of(*RESIZE),
        f'null, or have {[*TO_SCALE]}, {[*TO_SHORT_SIDE]} or {[*BY_FACTOR]}',
    ),
    'crop': (any_of(is_none, is_size), 'null, or a height and a width'),
    'pad': (partial(is_dict, checks=PADDING), f'numbers {[*PADDING]}'),
    'classes': (any_of(is_none, partial(is_list, is_item=is_text)), 'null, or names'),
    'palette': (
        any_of(is_none, partial(is_list, is_item=is_color)),
        'null, or lists of three numbers from 0 to 255',
    ),
    'align_corners': choice(False, True),
    'mask_threshold': (any_of(is_none, is_fraction), 'null, or from 0 to 1'),
    'version': (is_text, 'a text'),
    'config': (any_of(is_none, is_text), 'null, or a text'),
    'checkpoint_sha256': (any_of(is_none, is_text), 'null, or a text'),
}
