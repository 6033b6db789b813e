"""Arithmetic: PTX's instructions as functions of NumPy."""

import functools
from collections.abc import Callable

import numpy as np

from .formats import UNSIGNED, type_of
from .machine import Machine
from .ptx import Instruction, elements

COMPARISONS = {
    'eq': np.equal, 'ne': np.not_equal, 'lt': np.less, 'le': np.less_equal,
    'gt': np.greater, 'ge': np.greater_equal, 'lo': np.less, 'ls': np.less_equal,
    'hi': np.greater, 'hs': np.greater_equal,
}  # fmt: skip
ROUNDINGS = {'rni': np.rint, 'rzi': np.trunc, 'rmi': np.floor, 'rpi': np.ceil}


def high_product(a, b):
    exact = a.astype(object) * b.astype(object)  # of any length
    return (exact >> 8 * a.itemsize).astype(a.dtype)


def remainder(a, b):
    return np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype))


def quotient(a, b):
    """Return a / b, of integers rounded towards zero; x / 0 is any number."""
    if a.dtype.kind == 'f':
        return a / b
    return (a - remainder(a, b)) // np.where(b == 0, 1, b).astype(b.dtype)


def fused(a, b, c):
    """Return a * b + c, of floats with one rounding."""
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b + c).astype(np.float32)
    return a * b + c


def fused_down(a, b, c):
    """Return a * b + c, rounded down."""
    exact = a.astype(np.float64) * b + c
    near = exact.astype(np.float32)
    return np.where(near > exact, np.nextafter(near, np.float32('-inf')), near)


def wide_product(a, b, *c):
    """Multiply to twice the bits, and add a number of those."""
    number = np.dtype(f'{a.dtype.kind}{2 * a.itemsize}')
    return sum(c, a.astype(number) * b.astype(number))


def shift_left(a, n):
    return np.where(n < 8 * a.itemsize, a << (n % (8 * a.itemsize)).astype(a.dtype), 0)


def shift_right(a, n):
    last = 8 * a.itemsize - 1
    shifted = a >> np.minimum(n, last).astype(a.dtype)
    return shifted if a.dtype.kind == 'i' else np.where(n > last, 0, shifted)


def extract(a, start, count):
    """Return `count` bits from `start` on, the last of which is the sign."""
    bits = 8 * a.itemsize
    assert (0 < count).all() and (start + count <= bits).all()
    a = a << (bits - start - count).astype(a.dtype)
    return a >> (bits - count).astype(a.dtype)


def permute_bytes(a, b, selectors):
    both, result = b.astype(np.uint64) << np.uint64(32) | a, np.uint32(0)
    for i in range(4):
        selector = selectors >> np.uint32(4 * i) & np.uint32(15)
        byte = (both >> np.uint64(8) * (selector & np.uint32(7))).astype(np.uint8)
        byte = np.where(selector & np.uint32(8), byte.view(np.int8) >> 7, byte)
        result = result | byte.astype(np.uint8).astype(np.uint32) << np.uint32(8 * i)
    return result


def compare(name: str, a, b):
    unordered = (a != a) | (b != b)
    if name in ('num', 'nan'):
        return unordered if name == 'nan' else ~unordered
    if name in COMPARISONS:
        return COMPARISONS[name](a, b) & ~unordered
    return COMPARISONS[name.removesuffix('u')](a, b) | unordered


def convert(name: tuple[str, ...], a):
    rounding = next((ROUNDINGS[flag] for flag in name if flag in ROUNDINGS), None)
    a = rounding(a) if rounding else a
    if name[-2][0] in 'us' and a.dtype.kind == 'f':
        number = type_of(name[-2]).number
        limits = np.iinfo(number)
        a = np.clip(a.astype(np.float64), float(limits.min), float(limits.max))
        return np.where(np.isnan(a), 0, a).astype(number)
    return np.where(np.isnan(a), 0, np.clip(a, 0, 1)) if 'sat' in name else a


FUNCTIONS = {
    'add': np.add, 'sub': np.subtract, 'mul': np.multiply, 'div': quotient,
    'rem': remainder, 'fma': fused, 'mad': fused, 'neg': np.negative, 'abs': np.abs,
    'not': np.invert, 'mov': np.asarray, 'cvta': np.asarray, 'ex2': np.exp2,
    'lg2': np.log2, 'sqrt': np.sqrt, 'rcp': np.reciprocal, 'min': np.fmin,
    'max': np.fmax, 'shl': shift_left, 'shr': shift_right, 'and': np.bitwise_and,
    'or': np.bitwise_or, 'xor': np.bitwise_xor, 'bfe': extract, 'prmt': permute_bytes,
    'setp': compare, 'selp': lambda a, b, first: np.where(first, a, b), 'cvt': convert,
}  # fmt: skip
WITH_FLAG = {
    ('mul', 'hi'): high_product, ('fma', 'rm'): fused_down,
    ('min', 'NaN'): np.minimum, ('max', 'NaN'): np.maximum,
    ('mul', 'wide'): wide_product, ('mad', 'wide'): wide_product,
}  # fmt: skip


@functools.cache
def decode(name: tuple[str, ...], count: int) -> tuple[Callable, list[str], str]:
    """Return a function, the types of its `count` operands and of its result."""
    first, result = name[0], name[-1]
    flagged = [f for (n, flag), f in WITH_FLAG.items() if n == first and flag in name]
    function, kinds = (*flagged, FUNCTIONS[first])[0], [result] * count
    if 'wide' in name:
        result = f'{result[0]}{2 * type_of(result).bits}'
        kinds[2:] = [result] * (count - 2)
    elif first == 'setp':
        function, result = functools.partial(compare, name[1]), 'pred'
    elif first == 'selp':
        kinds[2] = 'pred'
    elif first == 'cvt':
        function, result = functools.partial(convert, name), name[-2]
        if result.endswith('x2'):
            function = lambda high, low: np.stack([low, high])  # noqa: E731
    elif first in ('shl', 'shr', 'bfe'):
        kinds[1:] = ['u32'] * (count - 1)
    elif first == 'prmt' and len(name) > 2:
        raise NotImplementedError('.'.join(name))
    elif first == 'fma' and 'f32' in name[:-1]:  # of halves, to float32
        kinds[2] = result = 'f32'
    elif first in ('min', 'max') and count == 3:  # from sm_100 on
        of_two = function
        function = lambda a, b, c: of_two(of_two(a, b), c)  # noqa: E731
    return function, kinds, result


def compute(m: Machine, x: Instruction):
    if x.name[0] == 'mov' and '{' in ''.join(x.operands):
        return pack_or_unpack(m, x)
    target, *sources = x.operands
    function, kinds, result = decode(x.name, len(sources))
    numbers = [m.read(*pair) for pair in zip(sources, kinds, strict=True)]
    m.write(target, result, function(*numbers))


def pack_or_unpack(m: Machine, x: Instruction):
    target, source = x.operands
    parts = elements(target if '{' in target else source)
    bits = type_of(x.type).bits
    width, whole = bits // len(parts), UNSIGNED[bits]
    if '{' in target:
        value = m.read(source, x.type)
        for i, part in enumerate(parts):
            m.write(part, f'b{width}', value >> whole(i * width))
    else:
        undefined = (1 << width) - 1  # a half that is not used may be; this is NaN
        values = [m.read(part, f'b{width}', undefined).astype(whole) for part in parts]
        m.write(
            target, x.type, sum(v << whole(i * width) for i, v in enumerate(values))
        )
