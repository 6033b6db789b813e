"""Bound the time and memory that a `.pth` file can take, before PyTorch reads it.

PyTorch's restricted unpickler runs no code of the file, but a file of 900 bytes can
occupy it for hours. So the program in the file is first read over, and only its sizes
and its calls are followed:

- A tuple in a tuple in a tuple, each held twice, doubles at each level what it takes to
  hash the outermost one. The parts are counted, and so is the depth.
- A call of something that is no named function ends in a message that prints it, and
  `bytearray` or a chain of encodings makes gigabytes of a number.
- The records of a zip file are stored as they are. Compressed or shared ones could be
  larger than the file.
"""

import os
import pickletools
import zipfile
from pickle import UnpicklingError
from typing import BinaryIO, NamedTuple

MAX_DEPTH = 100  # of tuples in tuples; hashing them overflows the stack far above it
MAX_PARTS = 10_000_000  # of tuples, in all; they are hashed in less than a second
MAX_NAME = 200  # characters; PyTorch searches its message in quadratic time
PICKLES = 5  # in a file without a zip: three headers, the data, the keys
TEXT_ENCODINGS = (['latin1'], ['latin-1'])  # of bytes in a pickle of protocol 2


class _Part(NamedTuple):
    """An object of the pickle, as far as it is followed."""

    size: int = 1  # a tuple's number of parts, each counted as often as it occurs
    depth: int = 0  # of tuples
    value: object = None  # of a number or text; the parts of a tuple
    name: str = ''  # of a global


_MARK = _Part()


class _Capped(NamedTuple):
    """A file that is not asked for more than it has; reading would allocate it."""

    file: BinaryIO
    length: int

    def read(self, size: int) -> bytes:
        return self.file.read(min(size, self.length))

    def readline(self) -> bytes:
        return self.file.readline()


def check_bounds(file):
    """Check an open checkpoint; its position stays the same.

    Raises:
        ValueError: reading it could take much more than its size.
        Exception: the file is damaged. Any step may raise.
    """
    start = file.tell()
    length = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    try:
        if file.read(4) == b'PK\x03\x04':
            _check_zip(file, length)
        else:
            file.seek(start)
            for _ in range(PICKLES):
                check_pickle(_Capped(file, length), length)
    finally:
        file.seek(start)


def _check_zip(file, length: int):
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if any(record.filename.endswith('constants.pkl') for record in records):
            raise ValueError('it is TorchScript')
        for record in records:
            if record.compress_type != zipfile.ZIP_STORED:
                raise ValueError(
                    f'its record {record.filename[:80]!r} is compressed; PyTorch stores'
                    ' records as they are'
                )
        total = sum(record.file_size for record in records)
        if total > length:
            raise ValueError(f'its records claim {total} of the {length} bytes')
        for record in records:
            if record.filename.endswith('data.pkl'):
                with archive.open(record) as pickled:
                    check_pickle(pickled, length)


def check_pickle(file, length: int):
    """Follow one pickle to its end.

    Args:
        file: binary stream at the start of the pickle.
        length: the bytes of the checkpoint, which its tensors cannot exceed.

    Raises:
        ValueError: the pickle could take much more time or memory than its size.
        UnpicklingError: it calls something that is no named function.
    """
    stack, memo, parts, elements, storages = [], {}, 0, 0, set()
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in ('PUT', 'BINPUT', 'LONG_BINPUT'):
            memo[argument] = stack[-1]
            continue
        taken = _take(stack, opcode.stack_before)
        made = _Part(value=argument)
        if opcode.name == 'MARK':
            made = _MARK
        elif opcode.name in ('GET', 'BINGET', 'LONG_BINGET'):
            made = memo[argument]
        elif opcode.name == 'GLOBAL':
            made = _Part(name=argument.replace(' ', '.'))
            if len(argument) > MAX_NAME:
                raise ValueError(f'it names a global of {len(argument)} characters')
        elif opcode.name in ('TUPLE', 'TUPLE1', 'TUPLE2', 'TUPLE3'):
            size = 1 + sum(part.size for part in taken)
            depth = 1 + max((part.depth for part in taken), default=0)
            made = _Part(size, depth, taken)
        elif opcode.name in ('REDUCE', 'NEWOBJ'):
            made = _Part(value=_called(*taken))
        elif opcode.name == 'BINPERSID':
            _, _, key, _, count, *_ = (part.value for part in taken[0].value)
            if key not in storages:
                storages.add(key)
                elements += abs(count)
            if elements > length:
                raise ValueError(f'its tensors claim more than its {length} bytes')
        stack += [made] * len(opcode.stack_after)
        parts += made.size - 1
        if parts > MAX_PARTS or made.depth > MAX_DEPTH:
            raise ValueError(
                f'its tuples hold more than {MAX_PARTS} parts or are nested more than '
                f'{MAX_DEPTH} deep'
            )


def _take(stack: list, before: list) -> list:
    """Remove and return what an instruction takes from the stack."""
    count = len(before)
    if pickletools.markobject in before:
        marked = len(stack) - 1
        while stack[marked] is not _MARK:
            marked -= 1
        del stack[marked]
        count = len(stack) - marked + before.index(pickletools.markobject)
    if count > len(stack):
        raise IndexError('its stack is empty')
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def _called(function: _Part, arguments: _Part) -> str | None:
    """Return the text that a call encodes, if it does; raise where it may explode."""
    if not function.name:
        # As PyTorch says it, but without printing the object.
        raise UnpicklingError('unrecognized function without a name')
    values = [part.value for part in arguments.value or ()]
    if function.name == '_codecs.encode':
        if type(values[0]) is not str or values[1:] not in TEXT_ENCODINGS:
            raise ValueError('it encodes text as nothing that stands for bytes')
        return values[0]
    if function.name.endswith('.bytearray') and values:
        if type(values[0]) is not str or values[1:] not in ([], *TEXT_ENCODINGS):
            raise ValueError('it makes a bytearray of something other than bytes')
    return None
