"""Parse PTX, as Triton and nvcc write it, into a list of instructions."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

ENTRY = re.compile(r'\.entry\s+([$\w]+)\s*\((.*?)\)(.*?)^\{(.*?)^\}', re.S | re.M)
PARAMETER = re.compile(r'\.param(.*?)\.([usbf])(\d+)(.*?)\s([$\w]+)(?:\[(\d+)\])?\s*$')
REGISTERS = re.compile(r'\.reg\s+\.(pred|\w\d+)\s+(%\w+)<')
STATEMENT = re.compile(r'(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)', re.S)
LABEL = re.compile(r'([$\w]+):')
IGNORED = ('.reg', '.pragma', '.shared', '.local', '.branchtargets')


class Instruction(NamedTuple):
    """Hold an instruction.

    Args:
        guard: the predicate it depends on, or None.
        negated: whether it runs where the predicate is false.
        name: its parts, which the text separates by dots.
        operands: as text; those in braces hold commas.
        place: file and line of the source, where the PTX names them.
    """

    guard: str | None
    negated: bool
    name: tuple[str, ...]
    operands: tuple[str, ...]
    place: str

    @property
    def type(self) -> str:
        """Return the last part, which is the type of most instructions."""
        return self.name[-1]

    def __str__(self) -> str:
        return f'{".".join(self.name)} {", ".join(self.operands)}'


class Kernel:
    """Hold a kernel of a PTX file.

    Args:
        text: the file.
        name: name of the kernel, or None for the only one.
    """

    def __init__(self, text: str, name: str | None = None):
        found = [x for x in ENTRY.finditer(text) if name in (None, x[1])]
        if len(found) != 1:
            raise ValueError(f'PTX must have one kernel {name}, got {len(found)}')
        self.name, parameters, directives, body = found[0].groups()
        size = re.search(r'\.(?:reqntid|maxntid)\s+(\d+)', directives)
        self.threads = int(size[1])
        self.parameters, self.parameter_bytes = _parameters(parameters)
        self.widths = {
            prefix: 1 if kind == 'pred' else int(kind[1:])
            for kind, prefix in REGISTERS.findall(body)
        }
        files = dict(re.findall(r'\.file\s+(\d+)\s+"(?:.*/)?(.*?)"', text))
        self.labels: dict[str, int] = {}
        self.code: list[Instruction] = []
        for label, instruction in _statements(body, files):
            if label:
                self.labels[label] = len(self.code)
            else:
                self.code.append(instruction)

    def width(self, register: str) -> int:
        """Return the bits of a register, 1 for a predicate."""
        return self.widths[register.rstrip('0123456789')]

    def pack(self, values: Sequence[int | float]) -> bytes:
        """Return the bytes of arguments. Those that are not given are zero."""
        packed = bytearray(self.parameter_bytes)
        for value, (offset, dtype) in zip(
            values, self.parameters.values(), strict=False
        ):
            item = np.array(value, dtype).tobytes()
            packed[offset : offset + len(item)] = item
        return bytes(packed)


def _parameters(text: str) -> tuple[dict[str, tuple[int, str]], int]:
    """Return the offset and the NumPy dtype of each parameter, and the bytes of all."""
    offset, places = 0, {}
    for part in filter(str.strip, text.split(',')):
        before, kind, bits, _, name, length = PARAMETER.search(part).groups()
        size = int(bits) // 8
        align = re.search(r'align (\d+)', before) if length else None
        align = int(align[1]) if align else size
        offset = -(-offset // align) * align
        code = {'f': 'f', 's': 'i'}.get(kind, 'i' if size < 8 else 'u')
        places[name] = offset, f'{code}{size}'
        offset += size * int(length or 1)
    return places, offset


def _statements(body: str, files: dict) -> Iterator[tuple[str, Instruction | None]]:
    """Yield labels, with None, and instructions, with an empty label."""
    place = ''
    for line in re.sub(r'//[^\n]*|/\*.*?\*/', '', body).split('\n'):
        line = line.strip()
        if found := re.match(r'\.loc\s+(\d+)\s+(\d+)', line):
            place = f'{files.get(found[1], "")}:{found[2]}'
            continue
        while found := LABEL.match(line):
            yield found[1], None
            line = line[found.end() :].strip()
        line = re.sub(r'^\{\s*(?=\.reg|$|[a-z@])', '', line)
        for text in line.split(';'):
            text = text.strip().removeprefix('}').strip()
            if text in ('', '{') or text.startswith(IGNORED):
                continue
            negated, guard, name, rest = STATEMENT.fullmatch(text).groups()
            operands = tuple(_operands(rest))
            yield (
                '',
                Instruction(
                    guard, bool(negated), tuple(name.split('.')), operands, place
                ),
            )


def _operands(text: str) -> Iterator[str]:
    for part in re.findall(r'(?:\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]])+', text):
        yield part.strip()


def elements(operand: str) -> list[str]:
    """Return the registers of an operand in braces, or the only one."""
    return [x.strip() for x in operand.strip('{} ').split(',')]
