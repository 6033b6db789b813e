"""Memory of the machine, which knows who last wrote and read each of its cells.

Two accesses of a cell, one of which is a write, race unless they are of one thread, or
a barrier lies between them: one of the program, or of the warp for threads of a warp.
Two programs of a grid are never in order, except for atomic additions.
"""

import ctypes
import hashlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch

from .formats import UNSIGNED

NOBODY = -1
WARP = 32
TRUNCATED = 'a number that a tensor core truncates to TF32'
WIDEST = 16  # bytes of an access
GAP = 1 << 32  # between tensors, so that no small mistake ends in another one
APART = 3  # see `distance`
# An access: its thread and program, numbered over the grid, how many barriers of the
# program were passed, how many of those and the warp's own, and whether it is atomic.
# `spread` is the distance of the most distant two threads, where it stands for several.
ACCESS = np.dtype(
    [
        *((name, np.int32) for name in ('thread', 'program', 'epoch', 'clock')),
        ('atomic', np.bool_),
        ('spread', np.int8),
    ]
)
RACES = {
    'writes': (
        'an access after a write without a barrier',
        'an access of what another program writes',
    ),
    'reads': (
        'a write after a read without a barrier',
        'a write of what another program reads',
    ),
}


class Fault(Exception):
    """End a kernel: an access out of bounds, a wrong barrier, an endless loop."""


class Reports:
    """Count what is wrong but `allowed`, by its kind and the place in the program."""

    def __init__(self, allowed: str = ''):
        self.allowed = allowed
        self.found: Counter[str] = Counter()
        self.place = ''

    def add(self, text: str):
        if text != self.allowed:
            self.found[f'{text}, at {self.place}'] += 1

    def fault(self, text: str) -> Fault:
        return Fault(f'{text}, at {self.place}')


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return 0 for the same threads, 1 in a warp, 2 in a program, 3 elsewhere."""
    warps = a['thread'] // WARP != b['thread'] // WARP
    programs = (a['program'] != b['program']).astype(np.int8)
    return programs + warps + (a['thread'] != b['thread'])


def compared(now: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances to the last accesses, and whether barriers order them."""
    apart = np.maximum(distance(now, last), last['spread'])
    passed = now['clock'] > last['clock'], now['epoch'] > last['epoch']
    return apart, np.choose(apart, (True, *passed, last['thread'] == NOBODY))


class Region:
    """Hold bytes, and of each cell the last write and the reads since a barrier.

    Args:
        data: the bytes.
        grain: bytes of a cell, the smallest access.
        name: what it is, for reports.
        reports: gets what is wrong.
    """

    def __init__(self, data: np.ndarray, grain: int, name: str, reports: Reports):
        self.data, self.grain, self.name, self.reports = data, grain, name, reports
        cells = -(-data.size // grain)
        nobody = np.array((NOBODY, NOBODY, 0, 0, False, 0), ACCESS)
        self.last = {name: np.full(cells, nobody) for name in RACES}

    def cells(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """Return the cells (accesses, cells of an access) of some bytes at offsets."""
        return (offsets // self.grain)[:, None] + np.arange(max(1, size // self.grain))

    def places(self, offsets: np.ndarray, count: int, dtype) -> tuple:
        """Return all numbers of a type, and the places (accesses, count) of some."""
        size = np.dtype(dtype).itemsize
        numbers = self.data[: self.data.size // size * size].view(dtype)
        return numbers, (offsets // size)[:, None] + np.arange(count)

    def load(self, offsets: np.ndarray, size: int, count: int, now: np.ndarray):
        """Return (accesses, count) numbers of `size` bytes."""
        cells, reads = self.cells(offsets, size * count), self.last['reads']
        self.check(cells, now, 'writes')
        apart, forgotten = compared(now, reads.take(cells))
        self.note('reads', cells, now, np.where(forgotten, 0, apart))
        # Threads of this very access that share a cell: the last one is noted.
        apart = distance(now, reads.take(cells))
        if (shared := apart > 0).any():
            np.maximum.at(reads['spread'], cells[shared], apart[shared])
        numbers, places = self.places(offsets, count, UNSIGNED[8 * size])
        return numbers[places]

    def store(self, offsets: np.ndarray, values: np.ndarray, now: np.ndarray):
        """Store values (accesses, count)."""
        cells = self.cells(offsets, values.itemsize * values.shape[1])
        races = self.check(cells, now, *RACES)
        self.note('writes', cells, now)
        apart = distance(now, self.last['writes'].take(cells))
        if not races and (apart == APART).any():
            self.race('two programs write one place')
        numbers, places = self.places(offsets, values.shape[1], values.dtype)
        numbers[places] = values
        if (numbers[places] != values).any():
            self.race('threads that write different numbers to one place')

    def add(self, offsets: np.ndarray, values: np.ndarray, now: np.ndarray):
        """Add values (accesses, count) atomically, and return what was there."""
        cells = self.cells(offsets, values.itemsize * values.shape[1])
        now['atomic'] = True
        self.check(cells, now, *RACES)
        self.note('writes', cells, now)
        numbers, places = self.places(offsets, values.shape[1], values.dtype)
        before = numbers[places]
        np.add.at(numbers, places, values)
        return before

    def check(self, cells: np.ndarray, now: np.ndarray, *kinds: str) -> bool:
        """Report a race with last accesses of some kinds, and return whether."""
        for kind in kinds:
            last = self.last[kind].take(cells)
            apart, ordered = compared(now, last)
            races = apart[~(ordered | now['atomic'] & last['atomic'])]
            if races.size:
                self.race(RACES[kind][int(races.max() == APART)])
                return True
        return False

    def note(self, kind: str, cells: np.ndarray, now: np.ndarray, spread=0):
        now = now.repeat(cells.shape[1], 1)  # which is quicker than to broadcast records
        now['spread'] = spread
        self.last[kind].put(cells, now)

    def race(self, text: str):
        self.reports.add(f'race in {self.name}: {text}')


class SharedMemory(Region):
    """Hold the shared memory of some programs, and what is in flight there.

    Of each cell `filling` says whether a copy to it is in flight, `reading` whether a
    product of it is, and `unfenced` whether no proxy fence followed a store.
    """

    def __init__(self, data: np.ndarray, grain: int, reports: Reports):
        super().__init__(data, grain, 'shared memory', reports)
        shape = 3, self.last['writes'].size
        self.filling, self.reading, self.unfenced = np.zeros(shape, np.bool_)

    def load(self, offsets: np.ndarray, size: int, count: int, now: np.ndarray):
        cells = self.cells(offsets, size * count)
        if (self.last['writes']['thread'][cells] == NOBODY).any():
            self.reports.add('a read of shared memory that nothing wrote')
        if self.filling[cells].any():
            self.reports.add('a read of shared memory before the wait for its copy')
        return super().load(offsets, size, count, now)

    def store(self, offsets: np.ndarray, values: np.ndarray, now: np.ndarray):
        cells = self.cells(offsets, values.itemsize * values.shape[1])
        self.check_use(cells, 'write')
        super().store(offsets, values, now)
        self.unfenced[cells] = True

    def start_copy(self, offsets: np.ndarray, size: int, now: np.ndarray):
        """Note that bytes are in flight, which `finish_copy` stores."""
        cells = self.cells(offsets, size)
        self.check_use(cells, 'copy')
        self.check(cells, now, *RACES)
        self.filling[cells] = True

    def finish_copy(self, offsets: np.ndarray, values: np.ndarray, now: np.ndarray):
        self.filling[self.cells(offsets, values.itemsize * values.shape[1])] = False
        self.store(offsets, values, now)

    def check_use(self, cells, what: str):
        if (self.filling[cells] | self.reading[cells]).any():
            self.reports.add(f'a {what} of shared memory before the wait for its use')


class GlobalMemory:
    """Hold the tensors that a launch may access, at addresses with gaps between them.

    Args:
        reports: gets what is wrong.
        real: whether tensors keep their own addresses, for kernels that are given
            pointers by C++.
    """

    def __init__(self, reports: Reports, real: bool = False):
        self.reports, self.real = reports, real
        self.regions: list[tuple[int, Region]] = []  # in order of their addresses
        self.starts: dict[int, int] = {}

    def address(self, tensor: torch.Tensor, name: str) -> int:
        """Return the address of a tensor, whose storage may be accessed from now on."""
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start not in self.starts:
            base = GAP * (len(self.regions) + 1) + start % WIDEST
            base = self.starts[start] = start if self.real else base
            memory = (ctypes.c_uint8 * storage.nbytes()).from_address(start)
            data = np.frombuffer(memory, np.uint8)
            grain = min(4, tensor.element_size())
            self.regions.append((base, Region(data, grain, name, self.reports)))
            self.regions.sort(key=lambda pair: pair[0])
        return self.starts[start] + tensor.data_ptr() - start

    def digest(self) -> bytes:
        """Return a checksum of all tensors."""
        found = hashlib.blake2b()
        for _, region in self.regions:
            found.update(region.data)
        return found.digest()

    def parts(self, addresses: np.ndarray) -> Iterator[tuple[Region, np.ndarray, int]]:
        """Yield a tensor, the accesses of it, and its address."""
        bases = np.array([base for base, _ in self.regions])
        found = np.searchsorted(bases, addresses, 'right') - 1
        for i in np.unique(found):
            base, region = self.regions[i]  # the last one for an address before all
            yield region, found == i, base
