"""Rules for the metadata of exported files, which may come from anywhere."""

from collections.abc import Callable
from typing import Any

TASKS = ('features', 'classification', 'segmentation', 'detection')
MAX_SIDE = 2**20  # pipelines write 99999 for a side without a limit
MAX_NUMBER = 1e9

Check = Callable[[Any], bool]


def of_type(*kinds: type, least: float | None = None, most: float = 0) -> Check:
    """Return a check of the type, and of numbers from `least` to `most`."""
    return lambda value: (
        type(value) in kinds and (least is None or least <= value <= most)
    )


def list_of(is_item: Check, length: int | None = None) -> Check:
    """Return a check of lists of valid items, of a length if it is given."""
    return lambda value: (
        type(value) is list
        and length in (None, len(value))
        and all(map(is_item, value))
    )


def dict_of(**checks: Check) -> Check:
    """Return a check of dicts of these keys with valid values."""
    return lambda value: (
        type(value) is dict
        and set(value) == set(checks)
        and all(check(value[key]) for key, check in checks.items())
    )


def any_of(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def optional(check: Check) -> Check:
    return any_of(of_type(type(None)), check)


def choice(*accepted: Any) -> tuple[Check, str]:
    kinds = set(map(type, accepted))
    return (
        lambda value: type(value) in kinds and value in accepted,
        f'one of {list(accepted)}',
    )


is_text, is_flag = of_type(str), of_type(bool)
is_count = of_type(int, least=1, most=MAX_SIDE)
is_number = of_type(int, float, least=-MAX_NUMBER, most=MAX_NUMBER)
is_positive = of_type(int, float, least=1e-300, most=MAX_NUMBER)
is_size, is_texts = list_of(is_count, 2), list_of(is_text)
is_color = list_of(of_type(int, least=0, most=255), 3)
INTERPOLATION = dict(interpolation=is_text, backend=is_text)
RESIZES = (
    INTERPOLATION | dict(scale=is_size, keep_ratio=is_flag),
    INTERPOLATION | dict(short_side=is_count),
    INTERPOLATION | dict(factor=is_positive),
)
# Check of each attribute, and what it accepts.
RULES = {
    'task': choice(*TASKS),
    'inputs': choice(['image'], ['image', 'image_size']),
    'outputs': (lambda value: is_texts(value) and len(value) > 0, 'names'),
    'shape': (is_size, 'a height and a width'),
    'batch': (is_count, 'a positive number'),
    'dynamic': choice(None, 'batch', 'size'),
    'least': (optional(is_size), 'null, or a height and a width'),
    'mean': (list_of(is_number), 'numbers'),
    'std': (list_of(is_positive), 'positive numbers'),
    'channel_order': choice('rgb', 'bgr', 'file'),
    'normalized': choice(False, True),
    'input_dtype': choice('float32', 'uint8'),
    'resize': (
        optional(any_of(*(dict_of(**keys) for keys in RESIZES))),
        f'null, or have {" or ".join(str(list(keys)) for keys in RESIZES)}',
    ),
    'crop': (optional(is_size), 'null, or a height and a width'),
    'pad': (dict_of(divisor=is_count, value=is_number), 'a divisor and a value'),
    'classes': (optional(is_texts), 'null, or names'),
    'palette': (
        optional(list_of(is_color)),
        'null, or lists of three numbers from 0 to 255',
    ),
    'align_corners': choice(False, True),
    'mask_threshold': (
        optional(of_type(int, float, least=0, most=1)),
        'null, or from 0 to 1',
    ),
    'version': (is_text, 'a text'),
    'config': (optional(is_text), 'null, or a text'),
    'checkpoint_sha256': (optional(is_text), 'null, or a text'),
}
