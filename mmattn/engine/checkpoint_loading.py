"""Load a checkpoint into a runner, by the rules of `mmattn.weights.load`."""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from mmengine.runner import CheckpointLoader, Runner

from mmattn.errors import UserError

from ..weights.load import find_weights, load_weights, may_load_partially
from .last_layers import check_all_but_last
from .model import unwrapped


def load_checkpoint(
    runner: Runner,
    filename: str,
    map_location,
    *,
    exact: bool,
    required: Sequence[str] = (),
    revise_keys: Sequence[tuple[str, str]] = (),
    last: set[str] | None = None,
) -> dict:
    """Load a checkpoint into a runner: read, call the hooks, load, report, check.

    Args:
        exact: for resuming and testing; otherwise fine-tuning.
        required: keys that the checkpoint must have besides weights, to be resumed.
        revise_keys: patterns and replacements for names, applied after the hooks.
        last: names of the last layers' tensors, which alone may have other shapes;
            None applies the rule of fine-tuning.

    Returns:
        The checkpoint, with the weights under `state_dict`.

    Raises:
        ValueError: there are no weights, a required key is missing, or the rule is
            broken.
    """
    loaded = CheckpointLoader.load_checkpoint(filename, map_location, runner.logger)
    weights = find_weights(loaded, filename)
    lacking = [key for key in required if not isinstance(loaded.get(key), Mapping)]
    if lacking:
        raise UserError(
            f'{filename} cannot be resumed: it has no {" and no ".join(lacking)}, so '
            'mmengine did not save it. Use load_from to train from its weights'
        )
    checkpoint = {
        key: value
        for key, value in loaded.items()
        if not isinstance(value, torch.Tensor)
    }
    checkpoint['state_dict'] = weights
    runner.call_hook('after_load_checkpoint', checkpoint=checkpoint)
    weights = _revised(checkpoint['state_dict'], revise_keys)
    model = unwrapped(runner.model)
    report = load_weights(model, weights)
    if last is not None and not may_load_partially():
        check_all_but_last(report, filename, last, runner.logger)
        return checkpoint
    report.log(filename, runner.logger)
    part = 'backbone.' if hasattr(model, 'backbone') else ''
    report.check(filename, exact=exact, part=part, partial=may_load_partially())
    return checkpoint


def _revised(weights: Mapping, revise_keys: Sequence[tuple[str, str]]) -> OrderedDict:
    revised = OrderedDict(weights)
    for pattern, replacement in revise_keys:
        revised = OrderedDict(
            (re.sub(pattern, replacement, key), value) for key, value in revised.items()
        )
    if hasattr(weights, '_metadata'):
        revised._metadata = weights._metadata
    return revised
