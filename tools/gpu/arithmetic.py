"""Decode arithmetic: PTX's instructions as functions of NumPy."""

import numpy as np

from .machine import decoder, reader, writer
from .numbers import SIGNED, UNSIGNED, type_of
from .ptx import Instruction, Kernel, elements

COMPARISONS = {
    'eq': np.equal, 'ne': np.not_equal, 'lt': np.less, 'le': np.less_equal,
    'gt': np.greater, 'ge': np.greater_equal, 'lo': np.less, 'ls': np.less_equal,
    'hi': np.greater, 'hs': np.greater_equal,
}  # fmt: skip
ROUNDINGS = {'rni': np.rint, 'rzi': np.trunc, 'rmi': np.floor, 'rpi': np.ceil}
LOGIC = {'and': np.bitwise_and, 'or': np.bitwise_or, 'xor': np.bitwise_xor}


def least(flags):
    return np.minimum if 'NaN' in flags else np.fmin


def most(flags):
    return np.maximum if 'NaN' in flags else np.fmax


def product(flags):
    if 'hi' not in flags:
        return np.multiply

    def high(a, b):
        a, b = np.asarray(a), np.asarray(b)
        exact = a.astype(object) * b.astype(object)  # of any length
        return np.asarray(exact >> 8 * a.itemsize).astype(a.dtype)

    return high


def divide(a, b):
    """Return a / b, of integers rounded towards zero; x / 0 is any number."""
    if a.dtype.kind == 'f':
        return a / b
    return (a - remainder(a, b)) // np.where(b == 0, 1, b).astype(b.dtype)


def remainder(a, b):
    return np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype))


def fused(a, b, c):
    """Return a * b + c, of floats with one rounding."""
    if a.dtype == np.float32:
        return (np.float64(a) * b + c).astype(np.float32)
    return a * b + c


def shift_left(a, n):
    return np.where(n < 8 * a.itemsize, a << (n % (8 * a.itemsize)).astype(a.dtype), 0)


def shift_right(a, n):
    return (
        a >> np.minimum(n, 8 * a.itemsize - 1).astype(a.dtype)
        if (a.dtype.kind == 'i')
        else np.where(
            n < 8 * a.itemsize, a >> (n % (8 * a.itemsize)).astype(a.dtype), 0
        )
    )


# Of operands of the type that ends the name: functions of its flags.
ELEMENTWISE = {
    'add': lambda flags: np.add, 'sub': lambda flags: np.subtract, 'mul': product,
    'div': lambda flags: divide, 'fma': lambda flags: fused, 'mad': lambda flags: fused,
    'rem': lambda flags: remainder,
    'min': least, 'max': most, 'neg': lambda flags: np.negative,
    'abs': lambda flags: np.abs, 'not': lambda flags: np.invert,
    **{name: lambda flags, f=f: f for name, f in LOGIC.items()},
    'mov': lambda flags: lambda a: a, 'cvta': lambda flags: lambda a: a,
    'ex2': lambda flags: np.exp2, 'lg2': lambda flags: np.log2,
    'sqrt': lambda flags: np.sqrt, 'rsqrt': lambda flags: lambda a: 1 / np.sqrt(a),
    'rcp': lambda flags: lambda a: 1 / a, 'sin': lambda flags: np.sin,
    'cos': lambda flags: np.cos, 'tanh': lambda flags: np.tanh,
    'copysign': lambda flags: lambda sign, a: np.copysign(a, sign),
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
    count, function = len(x.operands) - 1, ELEMENTWISE[x.name[0]](x.name)
    if x.name[0] in ('min', 'max') and count == 3:
        two = function
        function = lambda a, b, c: two(two(a, b), c)  # noqa: E731
    if 'wide' in x.name:
        return _wide(x, kernel, count)
    if x.name[0] == 'mov' and '{' in ''.join(x.operands):
        return _pack_or_unpack(x, kernel)
    if 'rm' in x.name and x.name[0] == 'fma':
        function = _rounded_down
    return simple(x, kernel, function, [x.type] * count, x.type)


def _rounded_down(a, b, c):
    exact = np.float64(a) * b + c
    near = exact.astype(np.float32)
    return np.where(near > exact, np.nextafter(near, np.float32('-inf')), near)


def _wide(x: Instruction, kernel: Kernel, count: int):
    """Multiply to twice the bits."""
    wide = f'{x.type[0]}{2 * type_of(x.type).bits}'
    number = {'s': SIGNED, 'u': UNSIGNED}[x.type[0]][type_of(wide).bits]

    def function(a, b, *c):
        return sum(c, a.astype(number) * b.astype(number))

    return simple(x, kernel, function, [x.type, x.type, wide][:count], wide)


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
    reads, write = [reader(p, part) for p in parts], writer(target, x.type, kernel)

    def pack(machine, mask):
        values = [read(machine).astype(whole) for read in reads]
        shifted = [value << whole(i * width) for i, value in enumerate(values)]
        write(machine, np.bitwise_or.reduce(np.broadcast_arrays(*shifted)), mask)

    return pack


@decoder('shl', 'shr')
def shift(x: Instruction, kernel: Kernel):
    function = shift_left if x.name[0] == 'shl' else shift_right
    return simple(x, kernel, function, [x.type, 'u32'], x.type)


@decoder('shf')
def funnel_shift(x: Instruction, kernel: Kernel):
    left, wraps = x.name[1] == 'l', 'wrap' in x.name

    def function(low, high, n):
        n = n.astype(np.uint64)
        n = n % np.uint64(32) if wraps else np.minimum(n, np.uint64(32))
        both = high.astype(np.uint64) << np.uint64(32) | low
        return (both << n) >> np.uint64(32) if left else both >> n

    return simple(x, kernel, function, ['u32'] * 3, 'u32')


@decoder('bfe')
def extract(x: Instruction, kernel: Kernel):
    bits = type_of(x.type).bits
    start, count = (int(n, 0) for n in x.operands[2:])  # constants, of all that we run
    assert 0 < count and start + count <= bits

    def function(a, *_):
        return a << a.dtype.type(bits - start - count) >> a.dtype.type(bits - count)

    return simple(x, kernel, function, [x.type, 'u32', 'u32'], x.type)


@decoder('bfi')
def insert(x: Instruction, kernel: Kernel):
    start, count = (int(n, 0) for n in x.operands[3:])
    field = np.uint32(((1 << count) - 1) << start & 0xFFFFFFFF)

    def function(a, b, *_):
        return b & ~field | a << np.uint32(start) & field

    return simple(x, kernel, function, ['b32', 'b32', 'u32', 'u32'], x.type)


@decoder('prmt')
def permute_bytes(x: Instruction, kernel: Kernel):
    def function(a, b, selectors):
        both = b.astype(np.uint64) << np.uint64(32) | a
        result = np.uint32(0)
        for i in range(4):
            selector = selectors >> np.uint32(4 * i) & np.uint32(15)
            shift = (selector & np.uint32(7)).astype(np.uint64) * np.uint64(8)
            byte = (both >> shift).astype(np.uint32) & np.uint32(255)
            sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            byte = np.where(selector & np.uint32(8), sign, byte)
            result = result | byte << np.uint32(8 * i)
        return result

    return simple(x, kernel, function, ['b32'] * 3, 'b32')


@decoder('lop3')
def logic3(x: Instruction, kernel: Kernel):
    table = int(x.operands[4], 0)

    def function(*values):
        terms = []
        for i in range(8):
            if table >> i & 1:
                pairs = zip(values, (i & 4, i & 2, i & 1), strict=True)
                terms.append(np.bitwise_and.reduce([v if b else ~v for v, b in pairs]))
        return np.bitwise_or.reduce(terms)

    x = x._replace(operands=x.operands[:4])
    return simple(x, kernel, function, ['b32'] * 3, 'b32')


@decoder('setp')
def compare(x: Instruction, kernel: Kernel):
    name, others, is_float = x.name[1], x.operands[3:], 'f' in x.type

    def function(a, b, other=None):
        unordered = (a != a) | (b != b) if is_float else np.bool_(False)
        if name in ('num', 'nan'):
            result = unordered if name == 'nan' else ~unordered
        elif name in COMPARISONS:
            result = COMPARISONS[name](a, b) & ~unordered
        else:
            result = COMPARISONS[name[:-1]](a, b) | unordered
        return result if other is None else LOGIC[x.name[2]](result, other)

    kinds = [x.type, x.type, 'pred'][: 2 + len(others)]
    readers = [reader(a, kind) for a, kind in zip(x.operands[1:], kinds, strict=True)]
    targets = x.operands[0].split('|')
    writes = [writer(target, 'pred', kernel) for target in targets]

    def run(machine, mask):
        result = function(*(read(machine) for read in readers))
        for write, value in zip(writes, (result, ~result), strict=False):
            write(machine, value, mask)

    return run


@decoder('selp')
def select(x: Instruction, kernel: Kernel):
    def function(a, b, first):
        return np.where(first, a, b)

    return simple(x, kernel, function, [x.type, x.type, 'pred'], x.type)


@decoder('cvt')
def convert(x: Instruction, kernel: Kernel):
    to, source = x.name[-2:]
    if to.endswith('x2'):
        return simple(x, kernel, lambda a, b: np.stack([b, a]), [source] * 2, to)
    rounding = next((ROUNDINGS[flag] for flag in x.name if flag in ROUNDINGS), None)
    to_integer = to[0] in 'us' and 'f' in source
    number = {'s': SIGNED, 'u': UNSIGNED}[to[0]][type_of(to).bits] if to_integer else 0

    def function(a):
        a = rounding(a) if rounding else a
        if 'sat' in x.name and not to_integer:
            a = np.where(np.isnan(a), 0, np.clip(a, 0, 1))
        if to_integer:
            limits = np.iinfo(number)
            a = np.clip(np.float64(a), float(limits.min), float(limits.max))
            return np.where(np.isnan(a), 0, a).astype(number)
        return a

    return simple(x, kernel, function, [source], to)
