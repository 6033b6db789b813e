"""Which implementation of an operator runs: the one place that looks at devices."""

import functools
import logging
import os
from collections.abc import Mapping
from types import ModuleType

import torch
from torch import Tensor

logger = logging.getLogger('mmattn')

BACKEND_VARIABLE = 'MMATTN_BACKEND'


def select_backend(
    operator: str,
    requested: str | None,
    candidates: Mapping[str, ModuleType],
    *tensors: Tensor | None,
) -> str:
    """Name of the backend that runs a call.

    Args:
        operator: the operator's name, for messages.
        requested: a backend's name, or None to choose. The environment variable
            `MMATTN_BACKEND` stands in for None.
        candidates: backends by name, fastest first. Each has
            `unsupported(*tensors)`, which returns None when it can run the call and
            otherwise the reason why not.
        tensors: the operator's tensor arguments; only their meta data is read.

    Raises:
        ValueError: the requested backend does not exist or cannot run this call.
    """
    requested = requested or os.environ.get(BACKEND_VARIABLE)
    if requested:
        if requested not in candidates:
            raise ValueError(
                f'{operator}: backend must be one of {list(candidates)}, '
                f'got {requested!r}'
            )
        if reason := candidates[requested].unsupported(*tensors):
            raise ValueError(
                f'{operator}: backend {requested!r} cannot run this call: {reason}'
            )
        return requested
    rejected = []
    for name, candidate in candidates.items():
        reason = candidate.unsupported(*tensors)
        if reason is None:
            if rejected and tensors[0].is_cuda:
                _log_once(f'{operator} runs on {name!r}: {"; ".join(rejected)}')
            return name
        rejected.append(f'{name}: {reason}')
    raise ValueError(f'{operator}: no backend can run this call: {rejected}')


def is_autocast_on(device_type: str) -> bool:
    """Whether autocast is enabled; some devices, such as meta, have none."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(
        device_type
    )


@functools.cache
def _log_once(message: str):
    logger.warning(message)
