"""Parse PTX, as Triton and nvcc write it, into a list of instructions."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ENTRY = re.compile(r'\.entry\s+([$\w]+)\s*\((.*?)\)(.*?)^\{(.*?)^\}', re.S | re.M)
PARAMETER = re.compile(r'\.param(.*?)\.([usbf])(\d+)(.*?)\s([$\w]+)(?:\[(\d+)\])?\s*$')
REGISTERS = re.compile(r'\.reg\s+\.(pred|\w\d+)\s+(%\w+)<')
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/')
STATEMENT = re.compile(
    r'\.loc\s+(?P<file>\d+)\s+(?P<line>\d+)[^\n]*'
    r'|\.(?:reg|pragma|shared|local|branchtargets)\b[^;]*;'
    r'|(?P<label>[$\w]+):'
    r'|(?:@(?P<guard>!?%\w+)\s+)?(?P<name>[a-z][\w.:]*)(?P<operands>[^;]*);'
)
OPERAND = re.compile(r'(?:\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]])+')


class Instruction(NamedTuple):
    """Hold an instruction.

    Args:
        guard: the predicate it depends on, after a '!' if negated, or None.
        name: its parts, which the text separates by dots.
        operands: as text; those in braces hold commas.
        place: file and line of the source, where the PTX names them, and the name.
    """

    guard: str | None
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
        body, place = COMMENT.sub('', body), ''
        if rest := STATEMENT.sub('', body).strip('{} \t\n'):
            raise ValueError(f'{self.name} has what is no statement: {rest}')
        for x in STATEMENT.finditer(body):
            if x['file']:
                place = f'{files.get(x["file"], "")}:{x["line"]} '
            elif x['label']:
                self.labels[x['label']] = len(self.code)
            elif x['name']:
                operands = tuple(
                    part.strip() for part in OPERAND.findall(x['operands'])
                )
                name = tuple(x['name'].split('.'))
                self.code.append(
                    Instruction(x['guard'], name, operands, place + x['name'])
                )
        # The smallest access of shared memory, in bytes.
        self.grain = min(
            (
                int(x.type[1:]) // 8
                for x in self.code
                if x.name[0] in ('ld', 'st') and x.name[1].startswith('shared')
            ),
            default=2,
        )

    def width(self, register: str) -> int:
        """Return the bits of a register, 1 for a predicate."""
        return self.widths[register.rstrip('0123456789')]

    def pack(self, values: Sequence[int | float]) -> bytes:
        """Return the bytes of arguments. Those that are not given are zero."""
        packed = bytearray(self.parameter_bytes)
        places = self.parameters.values()
        for value, (offset, dtype) in zip(values, places, strict=False):
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
        code = 'u' if size == 8 and kind in 'ub' else 'f' if kind == 'f' else 'i'
        places[name] = offset, f'{code}{size}'
        offset += size * int(length or 1)
    return places, offset


def elements(operand: str) -> list[str]:
    """Return the registers of an operand in braces, or the only one."""
    return [x.strip() for x in operand.strip('{} ').split(',')]
