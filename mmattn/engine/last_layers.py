"""Start from a model of another number of classes: all but its last layers."""

import copy
import logging
from collections.abc import Mapping

from mmengine.config import Config

from mmattn.errors import UserError

from ..weights.report import LoadReport, list_names
from .first_screen import SHOWN
from .model import build

NUMBERS = 'num_classes', 'num_things_classes'


def last_layers(cfg: Config) -> set[str]:
    """Return the names of the tensors whose shape depends on the number of classes.

    The model is built twice without memory, once for a class more.
    """
    more = copy.deepcopy(cfg.model)
    _add_a_class(more)
    scope = dict(default_scope=cfg.get('default_scope'))
    shapes = [
        {
            name: value.shape
            for name, value in build(scope | dict(model=model)).state_dict().items()
        }
        for model in (cfg.model, more)
    ]
    return {name for name, shape in shapes[0].items() if shapes[1].get(name) != shape}


def _add_a_class(part):
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key in NUMBERS and isinstance(value, int):
                part[key] = value + 1
            elif key != 'data_preprocessor':
                _add_a_class(value)
    elif isinstance(part, list | tuple):
        for each in part:
            _add_a_class(each)


def check_all_but_last(
    report: LoadReport, source: str, last: set[str], logger: logging.Logger
):
    """Say which last layers were left out, and raise if anything else differs.

    Args:
        source: name of the checkpoint.
        last: names of the last layers' tensors.

    Raises:
        ValueError: another tensor is missing, unexpected or of another shape.
    """
    left = {k: v for k, v in report.mismatched.items() if k in last}
    others = [name for name in report.missing if name not in left]
    others += report.unexpected
    if others or not report.matched:
        raise UserError(
            f'{source} is not loaded: besides the last layers, these differ: '
            f'{list_names(others)}\n  '
            + '\n  '.join([str(report), *report.differences()])
        )
    text = f'kept {len(report.matched)} of {len(report.sizes)} tensors of {source}'
    if left:
        text += '; left out, as the number of classes is another: ' + ', '.join(
            f'{name} {old} -> {new}' for name, (old, new) in left.items()
        )
    logger.info(text, extra=SHOWN)
