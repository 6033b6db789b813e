"""Types of PTX: from the bits of a register to numbers of NumPy and back.

Registers are unsigned integers of their width, and predicates booleans. 16-bit floats
are computed in float32, and rounded where they are written.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {32: np.float32, 64: np.float64}


class Type(NamedTuple):
    """Describe a type: its bits, and functions from bits to numbers and back."""

    bits: int
    decode: Callable
    encode: Callable


def _from_bf16(x):
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> 16
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded.astype(np.uint16))


def _from_f16(x):
    return x.view(np.float16).astype(np.float32)


def _to_f16(x):
    return np.asarray(x, np.float32).astype(np.float16).view(np.uint16)


def _from_tf32(x):
    return (x & np.uint32(0xFFFFE000)).view(np.float32)


def _to_tf32(x):
    """Round to the nearest TF32 number, ties away from zero, and keep NaN."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return np.where(np.isnan(x), bits, bits + np.uint32(0x1000) & np.uint32(0xFFFFE000))


HALVES = {'bf16': (_from_bf16, _to_bf16), 'f16': (_from_f16, _to_f16)}


@functools.cache
def type_of(name: str) -> Type:
    """Return a type by its name, such as 'u32', 'bf16x2' or 'pred'."""
    if name == 'pred':
        return Type(1, lambda x: x, lambda x: np.asarray(x, np.bool_))
    if name == 'tf32':
        return Type(32, _from_tf32, _to_tf32)
    if name in HALVES:
        decode, encode = HALVES[name]
        return Type(16, lambda x: decode(x.astype(np.uint16)), encode)
    if name.endswith('x2'):
        return _pair(type_of(name[:-2]))
    kind, bits = name[0], int(name[1:])
    unsigned = UNSIGNED[bits]
    if kind in 'ub':
        return Type(bits, lambda x: x.astype(unsigned), lambda x: x.astype(unsigned))
    number = {'s': SIGNED, 'f': FLOAT}[kind][bits]
    return Type(
        bits,
        lambda x: x.astype(unsigned).view(number),
        lambda x: np.asarray(x).astype(number, copy=False).view(unsigned),
    )


def _pair(part: Type) -> Type:
    """Return the type of two numbers in a register, stacked in a new first axis."""
    narrow, wide = UNSIGNED[part.bits], UNSIGNED[2 * part.bits]

    def decode(x):
        halves = x, x >> wide(part.bits)
        numbers = [part.decode(half.astype(narrow)) for half in halves]
        return np.stack(numbers).reshape(2, -1)  # one column if the same for all

    def encode(x):
        low, high = (part.encode(half).astype(wide) for half in x)
        return low | high << wide(part.bits)

    return Type(2 * part.bits, decode, encode)


def constant(text: str):
    """Return the bits of a literal, as a Python integer or boolean."""
    if text in ('true', 'false'):
        return text == 'true'
    if text[:2] in ('0f', '0F', '0d', '0D'):
        return int(text[2:], 16)
    return int(text.rstrip('U'), 0)
