"""Follow integer instructions and divisions of a GPU, for `tools.gpu.sass`.

A rule takes a thread, the flags, the operands and the number of results. It returns the
results, an int for a pair of registers, or None where an operand is not known.
"""

import math
import operator
import struct
from collections.abc import Callable

SIGN, MASK = 1 << 31, (1 << 32) - 1


def signed(x: int) -> int:
    return x - 2 * SIGN if x & SIGN else x


def float_bits(x: float) -> int:
    return struct.unpack('<I', struct.pack('<f', x))[0]


def _float(bits: int) -> float:
    return struct.unpack('<f', struct.pack('<I', bits))[0]


def _rule(function: Callable) -> Callable:
    """Make a rule of a function of the flags and the values of all operands."""

    def rule(thread, flags, operands, count):
        values = [thread.read(x) for x in operands]
        return None if None in values else (function(flags, *values) & MASK,)

    return rule


def _with_carries(total: int, count: int) -> tuple:
    return (total & MASK, *(total >> 32 > i for i in range(count - 1)))


def _add(thread, flags, operands, count):
    values = [thread.read(x) for x in operands[: None if 'X' in flags else 3]]
    return None if None in values else _with_carries(sum(values), count)


def _multiply(thread, flags, operands, count):
    a, b = (thread.read(x) for x in operands[:2])
    wide = 'WIDE' in flags or 'HI' in flags
    c = thread.read_pair(operands[2]) if wide else thread.read(operands[2])
    carry = thread.read(operands[3]) if 'X' in flags else 0
    if None in (a, b, c, carry) or ('WIDE' in flags and count > 1):
        return None
    if wide and 'U32' not in flags:
        a, b = signed(a), signed(b)
    total = a * b + c + carry
    if 'WIDE' in flags:
        return total & (1 << 64) - 1
    return _with_carries(total >> 32 if 'HI' in flags else total, 1)


def _shift_add(thread, flags, operands, count):
    """LEA: (a << n) + b, and with HI the upper half of the shifted pair."""
    a, b, *high, shift = (thread.read(x) for x in operands if 'P' not in x)
    carry = thread.read(operands[-1]) if 'X' in flags else 0
    if None in (a, b, *high, shift, carry):
        return None
    if 'HI' in flags:
        top = high[0] if high else MASK if 'SX32' in flags and a & SIGN else 0
        a = (top << 32 | a) << shift >> 32
    else:
        a <<= shift
    return _with_carries((a & MASK) + b + carry, count)


def _shift(flags, low, shift, high):
    x = high << 32 | low
    if flags[0] == 'L':
        return x << shift >> 32 * ('HI' in flags)
    if flags[1] in ('S32', 'S64') and high & SIGN:
        x -= 1 << 64
    return x >> shift >> 32 * ('HI' in flags)


def _logic(thread, flags, operands, count):
    """LOP3 and PLOP3: a table of the bits of three operands."""
    values = [thread.read(x) for x in operands[:4]]
    if None in values:
        return None
    *values, table = values
    result = 0
    for i in range(8):
        if table >> i & 1:
            bits = [x if i & n else ~x for x, n in zip(values, (4, 2, 1), strict=True)]
            result |= bits[0] & bits[1] & bits[2]
    result &= MASK
    return (result,) if count == 1 else (result != 0, result)


def _predicate_logic(thread, flags, operands, count):
    values = [thread.read(x) for x in operands[:3]]
    if None in values:
        return None
    index = sum(n * bool(x) for x, n in zip(values, (4, 2, 1), strict=True))
    tables = operands[3], operands[4] if len(operands) > 4 else '0x0'
    return tuple(bool(thread.read(table) >> index & 1) for table in tables)


def _compare(thread, flags, operands, count):
    a, b, other, *lower = values = [thread.read(x) for x in operands]
    if None in values:
        return None
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


def _load(thread, flags, operands, count):
    """LDC loads one word by default, CS2R two."""
    if '64' in flags or ('SRZ' in operands and '32' not in flags):
        return thread.read_pair(operands[0])
    return (thread.read(operands[0]),)


def _half_constants(thread, flags, operands, count):
    """HFMA2 of zeros moves two halves, which are written as numbers."""
    if operands[:2] != ['-RZ', 'RZ']:
        return None
    high, low = (struct.pack('<e', float(x)) for x in operands[2:])
    return struct.unpack('<I', low + high)


def _reciprocal(thread, flags, operands, count):
    x = thread.read(operands[0])
    return (float_bits(1 / _float(x)),) if flags == ['RCP'] and x else None


RULES = {
    'MOV': _rule(lambda flags, x, *_: x),
    'R2UR': _rule(lambda flags, x, *_: x),
    'S2R': _rule(lambda flags, x: x),
    'S2UR': _rule(lambda flags, x: x),
    'CS2R': _load,
    'LDC': _load,
    'IADD3': _add,
    'IMAD': _multiply,
    'LEA': _shift_add,
    'LOP3': _logic,
    'PLOP3': _predicate_logic,
    'ISETP': _compare,
    'SHF': _rule(_shift),
    'SEL': _rule(lambda flags, a, b, first: a if first else b),
    'IMNMX': _rule(_least),
    'VIMNMX': _rule(_least),
    'VIADDMNMX': _rule(lambda flags, a, b, *rest: _least(flags, a + b & MASK, *rest)),
    'VIADD': _rule(lambda flags, a, b: a + b),
    'IABS': _rule(lambda flags, x: abs(signed(x))),
    'SGXT': _rule(_extend),
    # Division: a reciprocal in floating point, corrected by integers.
    'I2F': _rule(
        lambda flags, x: float_bits(float(x if 'U32' in flags else signed(x)))
    ),
    'MUFU': _reciprocal,
    'HFMA2': _half_constants,
    'F2I': _rule(lambda flags, x: min(MASK, max(0, math.trunc(_float(x))))),
}
