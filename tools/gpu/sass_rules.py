"""Follow integer instructions and divisions of a GPU, for `tools.gpu.sass`.

A rule takes the flags and the values of the operands. It returns the results as a
tuple, an int of any length, of which predicates get the carries, or None if not known.
"""

import functools
import math
import operator
import struct

SIGN, MASK = 1 << 31, (1 << 32) - 1


def signed(x: int) -> int:
    return x - 2 * SIGN if x & SIGN else x


def float_bits(x: float) -> int:
    return struct.unpack('<I', struct.pack('<f', x))[0]


def _float(bits: int) -> float:
    return struct.unpack('<f', struct.pack('<I', bits))[0]


def _add(flags, *values):
    return sum(values if 'X' in flags else values[:3])


def _multiply(flags, a, b, c, *carry):
    if ('WIDE' in flags or 'HI' in flags) and 'U32' not in flags:
        a, b = signed(a), signed(b)
    total = a * b + c + (carry[0] if 'X' in flags else 0)
    return total >> 32 if 'HI' in flags else total


def _shift_add(flags, *values):
    """LEA: (a << n) + b, and with HI the upper half of the shifted pair."""
    a, b, *high, shift = (x for x in values if not isinstance(x, bool))
    if 'HI' in flags:
        top = high[0] if high else MASK if 'SX32' in flags and a & SIGN else 0
        a = (top << 32 | a) << shift >> 32
    else:
        a <<= shift
    return (a & MASK) + b + (values[-1] if 'X' in flags else 0)


def _shift(flags, low, shift, high):
    x = high << 32 | low
    if flags[0] == 'L':
        return x << shift >> 32 * ('HI' in flags)
    if flags[1] in ('S32', 'S64') and high & SIGN:
        x -= 1 << 64
    return x >> shift >> 32 * ('HI' in flags)


def _logic(flags, a, b, c, table, *_):
    """LOP3: a table of the bits of three operands, and whether any is set."""
    result = 0
    for i in range(8):
        if table >> i & 1:
            bits = (x if i & n else ~x for x, n in ((a, 4), (b, 2), (c, 1)))
            result |= functools.reduce(operator.and_, bits) & MASK
    return result != 0, result


def _predicate_logic(flags, a, b, c, table, second=0, *_):
    index = 4 * bool(a) + 2 * bool(b) + bool(c)
    return tuple(bool(x >> index & 1) for x in (table, second))


def _compare(flags, a, b, other, *lower):
    if 'U32' not in flags:
        a, b = signed(a), signed(b)
    result = getattr(operator, flags[0].lower())(a, b)
    if 'EX' in flags:  # upper halves, after the lower ones
        if flags[0] == 'NE':
            result = result or lower[0]
        elif a == b:
            result = lower[0]
    combine = (lambda x: x or other) if 'OR' in flags else lambda x: x and other
    return bool(combine(result)), bool(combine(not result))


def _least(flags, a, b, least):
    if 'U32' not in flags:
        a, b = signed(a), signed(b)
    return min(a, b) if least else max(a, b)


def _extend(flags, x, bits):
    x &= (1 << bits) - 1
    return x if 'U32' in flags or not x >> bits - 1 & 1 else x - (1 << bits)


def _first(flags, x, *_):
    return x


def _reciprocal(flags, x):
    return float_bits(1 / _float(x)) if flags == ['RCP'] and x else None


RULES = {
    'MOV': _first,
    'R2UR': _first,
    'S2R': _first,
    'S2UR': _first,
    'CS2R': _first,
    'LDC': _first,
    'IADD3': _add,
    'IMAD': _multiply,
    'LEA': _shift_add,
    'LOP3': _logic,
    'PLOP3': _predicate_logic,
    'ISETP': _compare,
    'SHF': _shift,
    'SEL': lambda flags, a, b, first: a if first else b,
    'IMNMX': _least,
    'VIMNMX': _least,
    'VIADDMNMX': lambda flags, a, b, *rest: _least(flags, a + b & MASK, *rest),
    'VIADD': lambda flags, a, b: a + b,
    'IABS': lambda flags, x: abs(signed(x)),
    'SGXT': _extend,
    # Division: a reciprocal in floating point, corrected by integers.
    'I2F': lambda flags, x: float_bits(float(x if 'U32' in flags else signed(x))),
    'MUFU': _reciprocal,
    'F2I': lambda flags, x: min(MASK, max(0, math.trunc(_float(x)))),
}
