"""Count the instructions that a warp of a kernel executes, without a GPU.

One thread's control flow is followed through the disassembly: the integer instructions
that decide branches are executed, and the others only counted. The value of an
instruction that is not known here, such as a load, is None. A branch that depends on
None is not taken, so that a loop whose length is data counts as one round or two.
"""

import functools
import itertools
import math
import operator
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

PARAMETERS = {80: 0x160, 90: 0x210}  # where arguments lie in constant bank 0
LINE = re.compile(
    r'/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\S*?)(?:\s+(.*?))?\s*;'
)
LABEL = re.compile(r'\s*([.$\w]+):')
TARGET = re.compile(r'`\(([^)]+)\)')
REGISTER = re.compile(r'U?[RP]\d+$')
CONSTANT = re.compile(r'c\[0x0\]\[(0x[0-9a-f]+)\]')
SIGN, MASK = 1 << 31, (1 << 32) - 1
BRANCHES = 'BRA', 'EXIT', 'CALL', 'RET'
TENSOR_CORE = 'HMMA', 'HGMMA', 'IMMA', 'IGMMA', 'QGMMA', 'DMMA'
NO_RESULT = re.compile(
    'ST|RED|BAR|BRA|EXIT|BSSY|BSYNC|NOP|WARPSYNC|CALL|RET|DEPBAR|LDGDEPBAR|LDGSTS|'
    'MEMBAR|FENCE|ERRBAR|CCTL|SYNCS|UBLKCP|UTMA|WARPGROUP|YIELD'
)
SIGNS = {
    '!': lambda x: not x,
    '-': lambda x: -x & MASK,
    '~': lambda x: ~x & MASK,
    '|': lambda x: abs(signed(x)),
}


class Execution(NamedTuple):
    """Hold what a warp executed by kind, and how many branches depend on data."""

    counts: Counter
    unknown: int

    @property
    def tensor(self) -> int:
        """Return the number of instructions of tensor cores."""
        return sum(self.counts[kind] for kind in TENSOR_CORE)


def execute(code: str, words: Mapping[int, int], program: int) -> Execution:
    """Follow one thread of one program through a disassembly.

    Args:
        code: of the disassembler.
        words: see `constant_bank`.
        program: number of the program in its grid.
    """
    instructions, labels, stops = _parse(code)
    thread, unknown, taken_last, calls = Thread(words, program), set(), set(), []
    changes = [0] * (len(instructions) + 1)  # in how often instructions were executed
    place = 0
    while place < len(instructions):
        changes[place] += 1
        place = stops[place]
        changes[place + 1 if place < len(instructions) else place] -= 1
        if place == len(instructions):
            break
        x = instructions[place]
        if x.kind not in BRANCHES:
            thread.execute(x)
            place += 1
            continue
        conditions = (o for o in x.operands if re.match('!?U?P', o))
        values = [thread.read(o) for o in (x.guard or 'PT', *conditions)]
        taken = all(values) and 'DIV' not in x.flags
        if None in values and False not in values and x.target:
            unknown.add(place)
            if labels[x.target] > place:  # may leave a loop: every other time
                taken = place in taken_last
                taken_last ^= {place}
        if not taken:
            place += 1
        elif x.kind == 'EXIT':
            break
        else:
            if x.kind == 'CALL':
                calls.append(place + 1)
            place = calls.pop() if x.kind == 'RET' else labels[x.target]
    counts = Counter()
    for x, n in zip(instructions, itertools.accumulate(changes), strict=False):
        counts[x.kind] += n
    return Execution(counts, len(unknown))


def constant_bank(
    signature: Mapping[str, str], arguments: Mapping, warps: int, capability: int
) -> dict[int, int]:
    """Return the words of constant bank 0 by their places: arguments and block size.

    Args:
        signature, arguments: of `tools.dev.aot.Launch`. Tensors lie at address 0.
        warps: number of warps of a program.
        capability: a key of `PARAMETERS`.
    """
    place = PARAMETERS[capability]
    words = {0: 32 * warps, 4: 1, 8: 1}
    for name, kind in signature.items():
        if kind == 'constexpr':
            continue
        size = 4 if kind in ('i32', 'fp32') else 8
        place = -(-place // size) * size
        value = arguments[name] or 0
        bits = _bits(value) if kind == 'fp32' else value
        for i in range(size // 4):
            words[place + 4 * i] = bits >> 32 * i & MASK
        place += size
    return words


class Instruction(NamedTuple):
    guard: str | None
    kind: str
    flags: list[str]
    results: list[str]
    operands: list[str]
    target: str | None


@functools.lru_cache(maxsize=4)
def _parse(code: str) -> tuple[list[Instruction], dict[str, int], list[int]]:
    """Return the instructions of a disassembly, the places of labels, and from each
    place that of the next branch or instruction that may decide one."""
    instructions, labels = [], {}
    for line in code.splitlines():
        if found := LINE.search(line):
            guard, name, text = found.groups()
            target = TARGET.search(text or '')
            kind, *flags = name.split('.')
            operands = [
                x.strip() for x in (text or '').replace('.reuse', '').split(',')
            ]
            count = 0 if NO_RESULT.match(kind) else _count_results(operands)
            instructions.append(
                Instruction(
                    guard, kind, flags, operands[:count], operands[count:],
                    target and target.group(1),
                )
            )  # fmt: skip
        elif found := LABEL.match(line):
            labels[found.group(1)] = len(instructions)
    stops = [len(instructions)]
    for i, decides in reversed(list(enumerate(_deciding(instructions)))):
        is_stop = decides or instructions[i].kind in BRANCHES
        stops.append(i if is_stop else stops[-1])
    return instructions, labels, stops[::-1]


def _count_results(operands: list[str]) -> int:
    """Return how many operands are results: the first, and predicates after it."""
    is_predicate = [bool(re.match(r'U?P(\d|T)', x)) for x in operands]
    count = 2 if is_predicate[0] else 1
    while count < len(operands) - 2 and not is_predicate[0] and is_predicate[count]:
        count += 1
    return count


def _deciding(instructions: list[Instruction]) -> list[bool]:
    writers = defaultdict(list)
    for i, x in enumerate(instructions):
        for register in _registers(x.results):
            writers[register].append(i)
    wanted, seen, todo = set(), set(), []
    for x in instructions:
        if x.target or x.kind == 'EXIT':
            todo += _registers([x.guard or '', *x.operands])
    while todo:
        register = todo.pop()
        if register not in seen:
            seen.add(register)
            for i in {*writers[register]} - wanted:
                wanted.add(i)
                x = instructions[i]
                todo += _registers([x.guard or '', *x.operands])
    return [i in wanted for i in range(len(instructions))]


def _registers(operands: list[str]) -> list[str]:
    """Return the registers of operands, each of which may be the first of a pair."""
    found = re.findall(r'U?[RP]\d+', ' '.join(operands))
    return found + [_next(x) for x in found if 'R' in x]


@functools.cache
def _next(register: str) -> str:
    kind, number = re.fullmatch(r'(U?R)(\d+)', register).groups()
    return f'{kind}{int(number) + 1}'


@functools.cache
def _reader(operand: str) -> Callable:
    """Return a function of a `Thread` that reads an operand."""
    if operand in ('RZ', 'URZ', 'SRZ', '-RZ'):
        return lambda thread: 0
    if operand in ('PT', 'UPT'):
        return lambda thread: True
    if REGISTER.match(operand):
        return lambda thread: thread.values.get(operand)
    if operand.startswith('SR_'):
        return lambda thread: thread.special.get(operand, 0)
    if found := CONSTANT.fullmatch(operand):
        place = int(found.group(1), 16)
        return lambda thread: thread.words.get(place)
    if re.fullmatch(r'-?0x[0-9a-f]+', operand):
        value = int(operand, 16) & MASK
        return lambda thread: value
    if sign := SIGNS.get(operand[:1]):
        inner = _reader(operand.strip(operand[0]))
        return lambda thread: None if (x := inner(thread)) is None else sign(x)
    return lambda thread: None


class Thread:
    """Hold the first thread of a program: its registers and the constants."""

    def __init__(self, words: Mapping[int, int], program: int):
        self.words, self.special = words, {'SR_CTAID.X': program}
        self.values: dict[str, int | bool | None] = {}

    def read(self, operand: str) -> int | bool | None:
        """Return the bits of an operand, or None if they are not known."""
        return _reader(operand)(self)

    def read_pair(self, operand: str) -> int | None:
        """Return 64 bits: a pair of registers, two words of constants, or a number."""
        low = self.read(operand)
        if REGISTER.match(operand):
            high = self.values.get(_next(operand))
        elif found := CONSTANT.fullmatch(operand):
            high = self.words.get(int(found.group(1), 16) + 4)
        else:
            high = 0 if low is None or low < SIGN else MASK
        return None if None in (low, high) else high << 32 | low

    def execute(self, x: Instruction):
        """Write the results of an instruction, None where they are not known."""
        rule = RULES.get(x.kind.removeprefix('U'))
        results = rule(self, x.flags, x.operands, len(x.results)) if rule else None
        if self.read(x.guard or 'PT') is False:
            return
        names = x.results
        if isinstance(results, int):  # a pair of registers
            names = [names[0], *(_next(n) for n in names if REGISTER.match(n))]
            results = results & MASK, results >> 32 & MASK
        for i, name in enumerate(names):
            if REGISTER.match(name):
                self.values[name] = results and results[i]


def signed(x: int) -> int:
    return x - 2 * SIGN if x & SIGN else x


def _bits(x: float) -> int:
    return struct.unpack('<I', struct.pack('<f', x))[0]


def _float(bits: int) -> float:
    return struct.unpack('<f', struct.pack('<I', bits))[0]


# Rules return the results, an int for a pair of registers, or None for not known.


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


def _reciprocal(thread, flags, operands, count):
    x = thread.read(operands[0])
    return (_bits(1 / _float(x)),) if flags == ['RCP'] and x else None


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
    'I2F': _rule(lambda flags, x: _bits(float(x if 'U32' in flags else signed(x)))),
    'MUFU': _reciprocal,
    'F2I': _rule(lambda flags, x: min(MASK, max(0, math.trunc(_float(x))))),
}
