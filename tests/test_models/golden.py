"""Golden values of official code; `tests/data/golden/README.md` says how they arose."""

import json
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[1] / 'data/golden'
EXACT = 1e-12
SINGLE = 1e-6  # where the official code has constants in float32
TABLES = (
    'pos_embed',
    'cls_token',
    'rpe_table',
    'bias_table',
    'rpb',
    'level_embed',
    'query_embed',
)


def golden(name: str) -> dict[str, dict]:
    """The records of a file, for example 'pvt'."""
    return json.loads((FOLDER / f'{name}.json').read_text())


def hashed(name: str, shape: Sequence[int]) -> Tensor:
    """Hash a name to numbers in [-1, 1), float64."""
    x = np.arange(prod(shape), dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()))
    for factor in (2654435761, 0x45D9F3B):
        x = (x & np.uint64(0xFFFFFFFF)) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
        x ^= x >> np.uint64(16)
    return torch.from_numpy(x.astype(np.float64) / 2**31 - 1).view(tuple(shape))


def hashed_input(*shape: int) -> Tensor:
    return hashed('input', shape)


def hashed_parameter(name: str, shape: Sequence[int]) -> Tensor:
    """Value of the parameter with this official name."""
    u = hashed(name, shape)
    if any(table in name for table in TABLES):
        return 0.1 * u
    if len(shape) >= 2:
        return u * (3 / prod(shape[1:])) ** 0.5
    return 1 + 0.1 * u if name.rpartition('.')[2] == 'weight' else 0.1 * u


def hashed_parameters(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values for the names and shapes of a state dict in the official layout."""
    return {name: hashed_parameter(name, value.shape) for name, value in like.items()}


def record_of(x: Tensor) -> dict:
    """Return the digest of a tensor that the golden files keep."""
    x = x.detach().double().contiguous()
    flat = x.flatten()
    return {
        'shape': list(x.shape),
        'mean': x.mean().item(),
        'std': x.std().item(),
        'probe_dot': (x * hashed('probe', x.shape)).mean().item(),
        'first': flat[:4].tolist(),
        'last': flat[-4:].tolist(),
    }


def assert_golden(x: Tensor, record: Mapping, tolerance: float = EXACT):
    """Asserts that `x` has the record of an official tensor.

    `tolerance` is absolute up to 1 and relative beyond.
    """
    actual = record_of(x)
    assert actual['shape'] == record['shape']
    for key in ('mean', 'std', 'probe_dot', 'first', 'last'):
        expected = pytest.approx(record[key], rel=tolerance, abs=tolerance)
        assert actual[key] == expected, key
