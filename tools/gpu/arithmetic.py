"""Decode arithmetic: PTX's instructions as functions of NumPy."""

import numpy as np

from .formats import SIGNED, UNSIGNED, constant, type_of
from .machine import decoder, reader, writer
from .ptx import Instruction, Kernel, elements

COMPARISONS = {
    'eq': np.equal, 'ne': np.not_equal, 'lt': np.less, 'le': np.less_equal,
    'gt': np.greater, 'ge': np.greater_equal, 'lo': np.less, 'ls': np.less_equal,
    'hi': np.greater, 'hs': np.greater_equal,
}  # fmt: skip
ROUNDINGS = {'rni': np.rint, 'rzi': np.trunc, 'rmi': np.floor, 'rpi': np.ceil}
LOGIC = {'and': np.bitwise_and, 'or': np.bitwise_or, 'xor': np.bitwise_xor}


def high_product(a, b):
    a, b = np.asarray(a), np.asarray(b)
    exact = a.astype(object) * b.astype(object)  # of any length
    return np.asarray(exact >> 8 * a.itemsize).astype(a.dtype)


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
        return (np.float64(a) * b + c).astype(np.float32)
    return a * b + c


def fused_down(a, b, c):
    """Return a * b + c, rounded down."""
    exact = np.float64(a) * b + c
    near = exact.astype(np.float32)
    return np.where(near > exact, np.nextafter(near, np.float32('-inf')), near)


def shift_left(a, n):
    return np.where(n < 8 * a.itemsize, a << (n % (8 * a.itemsize)).astype(a.dtype), 0)


def shift_right(a, n):
    last = 8 * a.itemsize - 1
    shifted = a >> np.minimum(n, last).astype(a.dtype)
    return shifted if a.dtype.kind == 'i' else np.where(n > last, 0, shifted)


# Of operands of the type that ends the name, and shifts by a number of bits.
ELEMENTWISE = {
    'add': np.add, 'sub': np.subtract, 'mul': np.multiply, 'div': quotient,
    'rem': remainder, 'fma': fused, 'mad': fused, 'neg': np.negative, 'abs': np.abs,
    'not': np.invert, 'mov': lambda a: a, 'cvta': lambda a: a, 'ex2': np.exp2,
    'lg2': np.log2, 'sqrt': np.sqrt, 'rcp': lambda a: 1 / a, 'min': np.fmin,
    'max': np.fmax, 'shl': shift_left, 'shr': shift_right, **LOGIC,
}  # fmt: skip
WITH_FLAG = {
    ('mul', 'hi'): high_product, ('fma', 'rm'): fused_down,
    ('min', 'NaN'): np.minimum, ('max', 'NaN'): np.maximum,
}  # fmt: skip


def simple(x: Instruction, kernel: Kernel, function, kinds, result: str):
    """Return how to write a function of operands of some types."""
    readers = [reader(a, kind) for a, kind in zip(x.operands[1:], kinds, strict=True)]
    write = writer(x.operands[0], result, kernel)

    def run(machine, mask):
        write(machine, function(*(read(machine) for read in readers)), mask)

    return run


@decoder(*ELEMENTWISE)
def elementwise(x: Instruction, kernel: Kernel):
    name, kinds = x.name[0], [x.type] * (len(x.operands) - 1)
    if 'wide' in x.name:
        return _wide(x, kernel)
    if name == 'mov' and '{' in ''.join(x.operands):
        return _pack_or_unpack(x, kernel)
    flagged = [f for (n, flag), f in WITH_FLAG.items() if n == name and flag in x.name]
    function = flagged[0] if flagged else ELEMENTWISE[name]
    if name in ('shl', 'shr'):
        kinds[1] = 'u32'
    if name == 'fma' and 'f32' in x.name[:-1]:  # of halves, to float32
        return simple(x, kernel, function, [x.type, x.type, 'f32'], 'f32')
    if name in ('min', 'max') and len(kinds) == 3:  # from sm_100 on
        of_two = function
        function = lambda a, b, c: of_two(of_two(a, b), c)  # noqa: E731
    return simple(x, kernel, function, kinds, x.type)


def _wide(x: Instruction, kernel: Kernel):
    """Multiply to twice the bits, and add a number of those."""
    wide = f'{x.type[0]}{2 * type_of(x.type).bits}'
    number = {'s': SIGNED, 'u': UNSIGNED}[x.type[0]][type_of(wide).bits]

    def function(a, b, *c):
        return sum(c, a.astype(number) * b.astype(number))

    kinds = [x.type, x.type, wide][: len(x.operands) - 1]
    return simple(x, kernel, function, kinds, wide)


def _pack_or_unpack(x: Instruction, kernel: Kernel):
    target, source = x.operands
    bits = type_of(x.type).bits
    parts = elements(target if '{' in target else source)
    width = bits // len(parts)
    whole, part = UNSIGNED[bits], f'b{width}'
    if '{' in target:
        read, writes = reader(source, x.type), [writer(p, part, kernel) for p in parts]

        def unpack(machine, mask):
            value = read(machine)
            for i, write in enumerate(writes):
                write(machine, value >> whole(i * width), mask)

        return unpack
    undefined = (1 << width) - 1  # a half that is not used may be; this is NaN
    reads = [reader(p, part, undefined) for p in parts]
    write = writer(target, x.type, kernel)

    def pack(machine, mask):
        values = [read(machine).astype(whole) for read in reads]
        write(machine, sum(v << whole(i * width) for i, v in enumerate(values)), mask)

    return pack


@decoder('bfe')
def extract(x: Instruction, kernel: Kernel):
    bits = type_of(x.type).bits
    start, count = (int(n, 0) for n in x.operands[2:])  # constants, of all that we run
    assert 0 < count and start + count <= bits

    def function(a, *_):
        return a << a.dtype.type(bits - start - count) >> a.dtype.type(bits - count)

    return simple(x, kernel, function, [x.type, 'u32', 'u32'], x.type)


@decoder('prmt')
def permute_bytes(x: Instruction, kernel: Kernel):
    selectors = constant(x.operands[3])  # of all that we run
    assert len(x.name) == 2, x

    def function(a, b, _):
        both, result = b.astype(np.uint64) << np.uint64(32) | a, np.uint32(0)
        for i in range(4):
            selector = selectors >> 4 * i & 15
            byte = (both >> np.uint64(8 * (selector & 7))).astype(np.uint32) & 255
            if selector & 8:  # its sign alone
                byte = (byte >> 7) * np.uint32(255)
            result = result | byte << np.uint32(8 * i)
        return result

    return simple(x, kernel, function, ['b32'] * 3, 'b32')


@decoder('setp')
def compare(x: Instruction, kernel: Kernel):
    name, is_float = x.name[1], 'f' in x.type
    assert len(x.operands) == 3 and '|' not in x.operands[0], x

    def function(a, b):
        unordered = (a != a) | (b != b) if is_float else np.bool_(False)
        if name in ('num', 'nan'):
            return unordered if name == 'nan' else ~unordered
        if name in COMPARISONS:
            return COMPARISONS[name](a, b) & ~unordered
        return COMPARISONS[name[:-1]](a, b) | unordered

    return simple(x, kernel, function, [x.type] * 2, 'pred')


@decoder('selp')
def select(x: Instruction, kernel: Kernel):
    def function(a, b, first):
        return np.where(first, a, b)

    return simple(x, kernel, function, [x.type, x.type, 'pred'], x.type)


@decoder('cvt')
def convert(x: Instruction, kernel: Kernel):
    to, source = x.name[-2:]
    if to.endswith('x2'):
        return simple(
            x,
            kernel,
            lambda a, b: np.stack(np.broadcast_arrays(b, a)),
            [source] * 2,
            to,
        )
    rounding = next((ROUNDINGS[flag] for flag in x.name if flag in ROUNDINGS), None)
    to_integer = to[0] in 'us' and 'f' in source
    number = {'s': SIGNED, 'u': UNSIGNED}[to[0]][type_of(to).bits] if to_integer else 0

    def function(a):
        a = rounding(a) if rounding else a
        if to_integer:
            limits = np.iinfo(number)
            a = np.clip(np.float64(a), float(limits.min), float(limits.max))
            return np.where(np.isnan(a), 0, a).astype(number)
        return np.where(np.isnan(a), 0, np.clip(a, 0, 1)) if 'sat' in x.name else a

    return simple(x, kernel, function, [source], to)
