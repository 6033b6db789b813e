"""Count the instructions that a warp of a kernel executes, without a GPU.

One thread's control flow is followed through the disassembly: the integer instructions
that decide branches are executed, and the others only counted. The value of an
instruction that is not known here, such as a load, is None. A branch that depends on
None is not taken, so that a loop whose length is data counts as one round or two.
"""

import functools
import itertools
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tools.gpu.sass_rules import MASK, RULES, SIGN, float_bits, signed

PARAMETERS = {80: 0x160, 90: 0x210}  # where arguments lie in constant bank 0
LINE = re.compile(
    r'/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\S*?)(?:\s+(.*?))?\s*;'
)
LABEL = re.compile(r'\s*([.$\w]+):')
TARGET = re.compile(r'`\(([^)]+)\)')
REGISTER = re.compile(r'U?[RP]\d+$')
CONSTANT = re.compile(r'c\[0x0\]\[(0x[0-9a-f]+)\]')
PAIRS = {'IMAD': 2, 'LDC': 0, 'CS2R': 0}  # operands of 64 bits, if wide
SPILL = re.compile(r'\[R1(?:\+(0x[0-9a-f]+))?\]')
HALVES = re.compile(r'-RZ, RZ, ([-+.\w]+), ([-+.\w]+)$')
WIDE = {'64', '128', 'U8', 'S8', 'U16', 'S16'}  # spills of other than a word
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
        signature, arguments: of `tools.gpu.compile.Launch`. Tensors lie at address 0.
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
        bits = float_bits(value) if kind == 'fp32' else value
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
    place the place of the next branch or instruction that may decide one."""
    instructions, labels = [], {}
    for line in code.splitlines():
        if found := LINE.search(line):
            guard, name, text = found.groups()
            target = TARGET.search(text or '')
            kind, *flags = name.split('.')
            if kind in ('STL', 'LDL') and not WIDE.intersection(flags):
                kind, text = 'MOV', SPILL.sub(_spilled, text)
            elif kind == 'HFMA2' and HALVES.search(text):
                kind, text = 'MOV', HALVES.sub(_halves, text)
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


def _spilled(place: re.Match) -> str:
    """Return the name of a register that stands for a spilled word."""
    return f'R{1000 + int(place.group(1) or "0", 16) // 4}'


def _halves(constants: re.Match) -> str:
    """Return the number of two halves, which a product of zeros moves."""
    high, low = (struct.pack('<e', float(x)) for x in constants.groups())
    return hex(*struct.unpack('<I', low + high))


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
        kind, names = x.kind.removeprefix('U'), x.results
        is_wide = (
            'WIDE' in x.flags
            or (kind in ('LDC', 'CS2R') and '64' in x.flags)
            or (kind == 'CS2R' and '32' not in x.flags)
        )
        values = [self.read(operand) for operand in x.operands]
        if kind in PAIRS and (is_wide or 'HI' in x.flags):
            values[PAIRS[kind]] = self.read_pair(x.operands[PAIRS[kind]])
        known = (
            kind in RULES and None not in values and (not is_wide or len(names) == 1)
        )
        results = RULES[kind](x.flags, *values) if known else None
        if self.read(x.guard or 'PT') is False:
            return
        if isinstance(results, int):
            carries = [results >> 32 > i for i in range(len(names) - 1)]
            if is_wide:  # a pair of registers
                names = [*names, *(_next(n) for n in names if REGISTER.match(n))]
                carries = [results >> 32 & MASK]
            results = results & MASK, *carries
        for i, name in enumerate(names):
            if REGISTER.match(name):
                self.values[name] = results and results[i - len(names)]
