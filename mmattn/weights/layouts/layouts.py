"""Layouts of state dicts: which code base's names the weights of a model have."""

import re
from collections.abc import Mapping

from torch import Tensor

from mmattn.errors import UserError


def find_layout(
    state_dict: Mapping[str, Tensor], markers: Mapping[str, str]
) -> str | None:
    """Return the name of the layout, or None if it is unknown.

    Args:
        state_dict: the weights of a model.
        markers: for each layout a regular expression of a name that no later one has.
    """
    for layout, marker in markers.items():
        if any(re.fullmatch(marker, name) for name in state_dict):
            return layout
    return None


def layout_of(
    state_dict: Mapping[str, Tensor], markers: Mapping[str, str], model: str
) -> str:
    """Return the name of the layout, see `find_layout`.

    Raises:
        ValueError: the layout of the `model` is unknown.
    """
    layout = find_layout(state_dict, markers)
    if layout is None:
        raise UserError(
            f'these are not the weights of a {model}: no name matches one of '
            f'{list(markers.values())}; the first ones are {list(state_dict)[:3]}'
        )
    return layout
