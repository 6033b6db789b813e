"""Keep text from elsewhere from running as code in a config.

mmengine replaces every `{{...}}` in the text of a config before Python parses it. The
replacement can end the string around it.
"""

import math
from typing import Any

from mmattn.errors import UserError

TEMPLATE = '{{'


def check_text(text: Any, what: str):
    """Check a name from data that is about to be written into the text of a config.

    Raises:
        ValueError: it is no text, has several lines, or mmengine would replace a part.
    """
    if not isinstance(text, str) or len(text.splitlines()) > 1 or TEMPLATE in text:
        raise UserError(
            f"{what} must be text of one line without '{TEMPLATE}', which mmengine "
            f'replaces in configs, got {text!r}'
        )


def check_values(value: Any, key: str = 'the config'):
    """Check that mmengine reads a config as it writes it, into a work dir for example.

    Raises:
        ValueError: a key or a text of the config would become code, or a number is
            infinite or NaN, which has no literal.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(
            f'{key} must be a finite number, got {value}: the config that a run writes '
            'could not be read. Use a number such as 1e8, or None where it is accepted'
        )
    if isinstance(value, str) and TEMPLATE in value:
        raise UserError(
            f"{key} must not contain '{TEMPLATE}', which mmengine replaces when it "
            f'reads the config that a run writes, got {value!r}'
        )
    if isinstance(value, list | tuple | set):
        for index, item in enumerate(value):
            check_values(item, f'{key}[{index}]')
    elif hasattr(value, 'items'):
        for name, item in value.items():
            if isinstance(name, str):
                # mmengine puts keys between quotes as they are.
                if "'" in name or name.endswith('\\') or len(name.splitlines()) > 1:
                    raise UserError(
                        f'a key of {key} must be of one line, without single quotes '
                        f'or a backslash at its end, got {name!r}'
                    )
                check_values(name, f'a key of {key}')
            check_values(item, f'{key}.{name}')
