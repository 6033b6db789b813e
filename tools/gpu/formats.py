"""Types of PTX: from the bits of a register to numbers of NumPy and back.

Registers are unsigned integers of their width, and predicates booleans. 16-bit floats
are computed in float32, and rounded where they are written.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
KINDS = {'b': 'u', 'u': 'u', 's': 'i', 'f': 'f'}  # of PTX and of NumPy


class Type(NamedTuple):
    """Describe a type: its bits, the numbers to compute with, and both conversions."""

    bits: int
    number: type | np.dtype
    decode: Callable  # bits to numbers
    encode: Callable  # numbers to bits


def _from_bf16(x):
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> 16
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _from_tf32(x):
    return (x & np.uint32(0xFFFFE000)).view(np.float32)


def _to_tf32(x):
    """Round to the nearest TF32 number, ties away from zero, and keep NaN."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return np.where(np.isnan(x), bits, bits + np.uint32(0x1000) & np.uint32(0xFFFFE000))


SPECIAL = {
    'pred': Type(1, np.bool_, np.asarray, lambda x: np.asarray(x, np.bool_)),
    'bf16': Type(16, np.float32, _from_bf16, _to_bf16),
    'tf32': Type(32, np.float32, _from_tf32, _to_tf32),
}


@functools.cache
def type_of(name: str) -> Type:
    """Return a type by its name, such as 'u32', 'bf16x2' or 'pred'."""
    if name in SPECIAL:
        return SPECIAL[name]
    if name.endswith('x2'):
        return _pair(type_of(name[:-2]))
    bits = int(name[1:])
    stored, unsigned = np.dtype(f'{KINDS[name[0]]}{bits // 8}'), UNSIGNED[bits]
    number = np.dtype(np.float32) if name == 'f16' else stored
    return Type(
        bits,
        number,
        lambda x: x.astype(unsigned).view(stored).astype(number, copy=False),
        lambda x: np.asarray(x).astype(stored, copy=False).view(unsigned),
    )


def _pair(part: Type) -> Type:
    """Return the type of two numbers in a register, stacked in a new first axis."""
    narrow, wide = UNSIGNED[part.bits], UNSIGNED[2 * part.bits]
    shift = wide(part.bits)

    def decode(x):
        return np.stack([part.decode(half.astype(narrow)) for half in (x, x >> shift)])

    def encode(x):
        low, high = (part.encode(half).astype(wide) for half in x)
        return low | high << shift

    return Type(2 * part.bits, part.number, decode, encode)


@functools.cache
def constant(text: str) -> int:
    """Return the bits of a literal."""
    if text in ('true', 'false'):
        return text == 'true'
    if text[:2] in ('0f', '0F', '0d', '0D'):
        return int(text[2:], 16)
    return int(text.rstrip('U'), 0)
