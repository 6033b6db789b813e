"""Bound the time and memory that a `.pth` file can take, before PyTorch reads it.

PyTorch's restricted unpickler runs no code of the file, but a file of 900 bytes can
occupy it for hours. So the program in the file is first read over, and only its sizes,
its keys and its calls are followed:

- What is held twice counts twice where it is hashed or copied: the parts of tuples, and
  lists, dicts and texts that several calls take. The depth of tuples is bounded, too.
- Keys whose hashes a file can choose to be equal take quadratic time. Texts are no such
  keys, as Python salts their hashes, and neither are numbers below 2**61 - 1.
- Only functions that make something as large as their arguments are called. They make
  dense tensors and plain data.
- A zip file has one directory, which Python and PyTorch read alike. Its records are
  stored as they are; compressed or shared ones could be larger than the file.
"""

import os
import pickletools
import struct
import sys
import zipfile
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import BinaryIO, NamedTuple

from .allowed_globals import ALLOWED_GLOBALS

MAX_DEPTH = 100  # of tuples in tuples; hashing them overflows the stack far above it
MAX_PARTS = 10_000_000  # hashed and copied in all, in less than a second
MAX_KEYS = 3000  # parts of keys that may have equal hashes
MAX_NAME = 200  # characters; PyTorch searches its message in quadratic time
PICKLES = 5  # in a file without a zip: three headers, the data, the keys
TEXT_ENCODINGS = (['latin1'], ['latin-1'])  # of bytes in a pickle of protocol 2
RETYPE = 'torch._tensor._rebuild_from_type_v2'
PAIRS, ITEMS = 'collections.OrderedDict', ('collections.Counter', 'builtins.set')
CALLED = {
    *(name for _, name in ALLOWED_GLOBALS),
    *(
        f'torch._utils._rebuild_{kind}'
        for kind in ('parameter', 'parameter_with_state')
    ),
    *(f'torch._utils._rebuild_tensor{version}' for version in ('', '_v2', '_v3')),
    *(f'torch.{name}' for name in ('Size', 'device', 'nn.parameter.Parameter')),
    *('torch.serialization._get_layout', '_codecs.encode', RETYPE, PAIRS, *ITEMS),
    *('builtins.bytearray', 'builtins.complex'),
}
# The last records of a zip file: the end in 64 bits, its locator, and the end.
TAIL = '<4sQ2H2L4Q 4sLQL 4s4H2LH'


@dataclass(eq=False, slots=True)
class _Part:
    """An object of the pickle, as far as it is followed."""

    value: object = None  # of a number or text; the parts of a tuple or a list
    size: int = 1  # a tuple's number of parts, each counted as often as it occurs
    depth: int = 0  # of tuples
    name: str = ''  # of a global
    length: int = 0  # of a text, or of what was put into a container
    uses: int = 0  # calls that may copy it


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
            follower = _Follower(length)
            for _ in range(PICKLES):
                follower.follow(_Capped(file, length))
    finally:
        file.seek(start)


def _check_zip(file, length: int):
    _check_directory(file)
    with zipfile.ZipFile(file) as archive:
        # An extra field may change `filename`, and PyTorch ignores case.
        records = {each: each.orig_filename.lower() for each in archive.infolist()}
        if any(name.endswith('constants.pkl') for name in records.values()):
            raise ValueError('it is TorchScript')
        for record, name in records.items():
            if record.compress_type != zipfile.ZIP_STORED:
                raise ValueError(
                    f'its record {name[:80]!r} is compressed; PyTorch stores them as '
                    'they are'
                )
        total = sum(record.file_size for record in records)
        if total > length:
            raise ValueError(f'its records claim {total} of the {length} bytes')
        pickles = [each for each in records if records[each].endswith('data.pkl')]
        if len(pickles) != 1:
            raise ValueError(f'it has {len(pickles)} records data.pkl rather than one')
        with archive.open(pickles[0]) as pickled:
            _Follower(length).follow(pickled)


def _check_directory(file):
    """Raise unless a zip file's directory ends where its end records begin.

    Python reads the directory before the end record, PyTorch the one at the offset in
    it. Both read the records of 64 bits if there is their locator.
    """
    tail = struct.calcsize(TAIL)
    begin = file.seek(-tail, os.SEEK_END)
    found = struct.unpack(TAIL, file.read(tail))
    mark64, *_, size, offset = found[:10]
    locator, _, place, _ = found[10:14]
    mark, *_, size32, offset32, comment = found[14:]
    if locator != b'PK\x06\x07':
        place = begin + tail - 22
        size, offset = size32, offset32
    elif mark64 != b'PK\x06\x06' or place != begin:
        mark = b''
    if mark != b'PK\x05\x06' or comment or offset + size != place:
        raise ValueError('its directory is not where its end record says')


class _Follower:
    """Follow pickles, each to its end.

    Args:
        length: the bytes of the checkpoint, which its tensors cannot exceed.
    """

    def __init__(self, length: int):
        self.length = length
        self.parts = self.keys = self.elements = 0
        self.storages = set()

    def follow(self, file):
        """Follow one pickle.

        Args:
            file: binary stream at the start of the pickle.

        Raises:
            ValueError: the pickle could take much more time or memory than its size.
            UnpicklingError: it calls something that makes neither tensors nor data.
        """
        stack, memo = [], {}
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name in ('PUT', 'BINPUT', 'LONG_BINPUT'):
                memo[argument] = stack[-1]
                continue
            taken = _take(stack, opcode.stack_before)
            made = self._made(opcode.name, argument, taken, memo)
            stack += [made] * len(opcode.stack_after)
            self.parts += made.size - 1
            if self.parts > MAX_PARTS or made.depth > MAX_DEPTH:
                raise ValueError(
                    f'it holds or copies more than {MAX_PARTS} parts, or has tuples '
                    f'nested more than {MAX_DEPTH} deep'
                )

    def _made(self, name: str, argument, taken: list[_Part], memo: dict) -> _Part:
        """Return what an instruction leaves on the stack."""
        match name:
            case 'MARK':
                return _MARK
            case 'GET' | 'BINGET' | 'LONG_BINGET':
                return memo[argument]
            case 'GLOBAL':
                if len(argument) > MAX_NAME:
                    raise ValueError(f'it names a global of {len(argument)} characters')
                name = argument.replace(' ', '.')
                return _Part(name=name.replace('__builtin__.', 'builtins.'))
            case 'EMPTY_LIST':
                return _Part([])
            case 'EMPTY_TUPLE' | 'TUPLE' | 'TUPLE1' | 'TUPLE2' | 'TUPLE3':
                size = 1 + sum(part.size for part in taken)
                depth = 1 + max((part.depth for part in taken), default=0)
                return _Part(tuple(taken), size, depth)
            case 'APPEND' | 'APPENDS' | 'SETITEM' | 'SETITEMS':
                container, *items = taken
                if container.uses:
                    raise ValueError('it changes what a call has taken')
                container.length += len(items)
                if type(container.value) is list:
                    container.value += items
                else:
                    self._check_keys(items[::2])
                return container
            case 'BUILD':
                self._use(taken[1])
                return taken[0]
            case 'REDUCE' | 'NEWOBJ':
                return self._called(*taken)
            case 'BINPERSID':
                self._claim(*taken)
        text = type(argument) is str
        return _Part(argument, length=len(argument) if text else 0)

    def _use(self, part: _Part):
        """Count what a call may copy; the first copy is no larger than the file."""
        part.uses += 1
        if part.uses > 1:
            self.parts += part.length
        if type(part.value) is tuple:
            for each in part.value:
                self._use(each)

    def _check_keys(self, keys: list[_Part]):
        for key in keys:
            kind = type(key.value)
            small = kind is int and abs(key.value) < sys.hash_info.modulus
            if kind not in (str, float) and not small:
                self.keys += key.size
        if self.keys > MAX_KEYS:
            raise ValueError(
                f'its keys other than texts and numbers have more than {MAX_KEYS} parts'
            )

    def _claim(self, identity: _Part):
        _, _, key, _, count, *_ = (part.value for part in identity.value)
        if key not in self.storages:
            self.storages.add(key)
            self.elements += abs(count)
        if self.elements > self.length:
            raise ValueError(f'its tensors claim more than its {self.length} bytes')

    def _called(self, function: _Part, arguments: _Part) -> _Part:
        """Return the result of a call; raise where it may be larger than the file."""
        name = function.name
        if not name:
            # As PyTorch says it, but without printing the object.
            raise UnpicklingError('unrecognized function without a name')
        if name not in CALLED and name.startswith('torch._utils.'):
            raise ValueError(f'{name} makes no dense tensor')
        if name not in CALLED:
            raise UnpicklingError(f'GLOBAL {name} is refused')
        if type(arguments.value) is not tuple:
            raise ValueError(f'it calls {name} without a tuple of arguments')
        self._use(arguments)
        values = [part.value for part in arguments.value]
        if name == RETYPE:
            self._called(arguments.value[0], arguments.value[2])
        elif name == '_codecs.encode':
            if type(values[0]) is not str or values[1:] not in TEXT_ENCODINGS:
                raise ValueError('it encodes text as nothing that stands for bytes')
            return _Part(values[0], length=len(values[0]))
        elif name == 'builtins.bytearray' and values:
            if type(values[0]) is not str or values[1:] not in ([], *TEXT_ENCODINGS):
                raise ValueError('it makes a bytearray of something other than bytes')
        elif name in (PAIRS, *ITEMS):
            for part in arguments.value:
                if type(part.value) in (list, tuple) and part.uses == 1:
                    pairs = name == PAIRS
                    self._check_keys([i.value[0] if pairs else i for i in part.value])
        length = sum(part.length for part in arguments.value)
        return _Part(size=arguments.size, length=length)


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
