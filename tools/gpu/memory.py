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
# An access: its thread, warp and program, numbered over the grid, how many barriers
# of the program and of program or warp were passed, and whether it is atomic. `spread`
# is the distance of the most distant two threads, where it stands for several.
UNITS = 'thread', 'warp', 'program'
ACCESS = np.dtype(
    [(name, np.int32) for name in (*UNITS, 'epoch', 'clock')]
    + [('atomic', np.bool_), ('spread', np.int8)]
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
    return sum((a[unit] != b[unit]).astype(np.int8) for unit in UNITS)


def compared(now: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances to the last accesses, and whether barriers order them."""
    apart = np.maximum(distance(now, last), last['spread'])
    passed = now['clock'] > last['clock'], now['epoch'] > last['epoch']
    return apart, np.choose(apart, (True, *passed, last['thread'] == NOBODY))


def spans(offsets: np.ndarray, size: int, unit: int) -> np.ndarray:
    """Return the units (accesses, units of an access) of `size` bytes at offsets."""
    return (offsets // unit)[:, None] + np.arange(max(1, size // unit))


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
        nobody = np.array((NOBODY,) * 3 + (0,) * 4, ACCESS)
        self.last = {name: np.full(cells, nobody) for name in RACES}

    def load(self, offsets: np.ndarray, size: int, count: int, now: np.ndarray):
        """Return (accesses, count) numbers of `size` bytes."""
        cells, reads = spans(offsets, size * count, self.grain), self.last['reads']
        self.check(cells, now, 'writes')
        apart, forgotten = compared(now, reads.take(cells))
        self.note('reads', cells, now, np.where(forgotten, 0, apart))
        # Threads of this very access that share a cell: the last one is noted.
        apart = distance(now, reads.take(cells))
        if (shared := apart > 0).any():
            np.maximum.at(reads['spread'], cells[shared], apart[shared])
        return self.numbers(UNSIGNED[8 * size])[spans(offsets, size * count, size)]

    def store(self, offsets: np.ndarray, values: np.ndarray, now: np.ndarray):
        """Store values (accesses, count), and return what was there.

        Accesses that are noted as atomic add them.
        """
        size = values.itemsize * values.shape[1]
        cells, places = (spans(offsets, size, n) for n in (self.grain, values.itemsize))
        races, atomic = self.check(cells, now, *RACES), now['atomic'].any()
        self.note('writes', cells, now)
        apart = distance(now, self.last['writes'].take(cells))
        if not (races or atomic) and (apart == APART).any():
            self.race('two programs write one place')
        numbers = self.numbers(values.dtype)
        before = numbers[places]
        if atomic:
            np.add.at(numbers, places, values)
        else:
            numbers[places] = values
            if (numbers[places] != values).any():
                self.race('threads that write different numbers to one place')
        return before

    def numbers(self, dtype) -> np.ndarray:
        """Return the bytes as numbers."""
        size = np.dtype(dtype).itemsize
        return self.data[: self.data.size // size * size].view(dtype)

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
        now = now.repeat(
            cells.shape[1], 1
        )  # which is quicker than to broadcast records
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
        cells = spans(offsets, size * count, self.grain)
        if (self.last['writes']['thread'][cells] == NOBODY).any():
            self.reports.add('a read of shared memory that nothing wrote')
        if self.filling[cells].any():
            self.reports.add('a read of shared memory before the wait for its copy')
        return super().load(offsets, size, count, now)

    def store(self, offsets: np.ndarray, values: np.ndarray, now: np.ndarray):
        cells = spans(offsets, values.itemsize * values.shape[1], self.grain)
        self.check_use(cells, 'write')
        self.unfenced[cells] = True
        return super().store(offsets, values, now)

    def start_copy(self, offsets: np.ndarray, size: int, now: np.ndarray):
        """Note that bytes are in flight, which `finish_copy` stores."""
        cells = spans(offsets, size, self.grain)
        self.check_use(cells, 'copy')
        self.check(cells, now, *RACES)
        self.filling[cells] = True

    def finish_copy(self, offsets: np.ndarray, values: np.ndarray, now: np.ndarray):
        size = values.itemsize * values.shape[1]
        self.filling[spans(offsets, size, self.grain)] = False
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
