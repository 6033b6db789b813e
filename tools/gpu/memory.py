"""Memory of the machine, which knows who last wrote and read each of its cells.

Two accesses of a cell, one of which is a write, race unless they are of one thread, or
a barrier lies between them: one of the program, or of the warp for threads of a warp.
Two programs of a grid are never in order, except for atomic additions.
"""

import ctypes
import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from .formats import UNSIGNED

NOBODY = -1
WARP = 32
TRUNCATED = 'a number that a tensor core truncates to TF32'
WIDEST = 16  # bytes of an access
GAP = 1 << 32  # between tensors, so that no small mistake ends in another one
APART = 3  # distance of two programs, see `Lanes.distance`
# Last accesses of a cell. `spread` is the distance of the most distant two threads.
ACCESS = np.dtype('i4, i4, i4, i1')
ACCESS.names = 'thread', 'epoch', 'clock', 'spread'
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


class Lanes(NamedTuple):
    """Name the threads of an access, and how many barriers each has passed.

    Threads are numbered over the grid. `epochs` counts barriers of the program,
    `clocks` those and the warp's own. All have the shape (accesses, 1).
    """

    threads: np.ndarray
    epochs: np.ndarray
    clocks: np.ndarray
    size: int  # threads of a program

    def distance(self, threads: np.ndarray) -> np.ndarray:
        """Return 0 for the same threads, 1 in a warp, 2 in a program, 3 elsewhere."""
        units = 1, WARP, self.size
        return sum((threads // n != self.threads // n).astype(np.int8) for n in units)

    def after(self, last: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Return whether barriers order these accesses after the last ones."""
        return np.choose(
            distance,
            (
                True,
                last['clock'] < self.clocks,
                last['epoch'] < self.epochs,
                last['thread'] == NOBODY,
            ),
        )


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
        self.last = {name: np.zeros(cells, ACCESS) for name in RACES}
        for accesses in self.last.values():
            accesses['thread'] = NOBODY
        self.atomic = np.zeros(cells, np.bool_)

    def cells(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """Return the cells (accesses, cells of an access) of some bytes at offsets."""
        return (offsets // self.grain)[:, None] + np.arange(max(1, size // self.grain))

    def places(self, offsets: np.ndarray, count: int, dtype) -> tuple:
        """Return all numbers of a type, and the places (accesses, count) of some."""
        size = np.dtype(dtype).itemsize
        numbers = self.data[: self.data.size // size * size].view(dtype)
        return numbers, (offsets // size)[:, None] + np.arange(count)

    def load(self, offsets: np.ndarray, size: int, count: int, lanes: Lanes):
        """Return (accesses, count) numbers of `size` bytes."""
        cells, reads = self.cells(offsets, size * count), self.last['reads']
        self.check('writes', cells, lanes)
        last = reads[cells]
        distance = np.maximum(lanes.distance(last['thread']), last['spread'])
        forgotten = lanes.after(last, distance)
        self.note('reads', cells, lanes, np.where(forgotten, 0, distance))
        # Lanes of this very access that share a cell: the last one is noted.
        apart = lanes.distance(reads['thread'][cells])
        if (shared := apart > 0).any():
            np.maximum.at(reads['spread'], cells[shared], apart[shared])
        numbers, places = self.places(offsets, count, UNSIGNED[8 * size])
        return numbers[places]

    def store(self, offsets: np.ndarray, values: np.ndarray, lanes: Lanes):
        """Store values (accesses, count)."""
        self.write(offsets, values, lanes, atomic=False)
        numbers, places = self.places(offsets, values.shape[1], values.dtype)
        numbers[places] = values
        if (numbers[places] != values).any():
            self.race('threads that write different numbers to one place')

    def add(self, offsets: np.ndarray, values: np.ndarray, lanes: Lanes) -> np.ndarray:
        """Add values (accesses, count) atomically, and return what was there."""
        self.write(offsets, values, lanes, atomic=True)
        numbers, places = self.places(offsets, values.shape[1], values.dtype)
        before = numbers[places]
        np.add.at(numbers, places, values)
        return before

    def write(self, offsets, values: np.ndarray, lanes: Lanes, atomic: bool):
        """Note a write, and report its races."""
        cells = self.cells(offsets, values.itemsize * values.shape[1])
        races = self.check_write(cells, lanes, atomic)
        self.note('writes', cells, lanes, 0)
        self.atomic[cells] = atomic
        apart = lanes.distance(self.last['writes']['thread'][cells])
        if not (races or atomic) and (apart == APART).any():
            self.race('two programs write one place')

    def check_write(self, cells, lanes: Lanes, atomic: bool = False) -> bool:
        """Report a race of a write, if there is one, and return whether."""
        return self.check('writes', cells, lanes, atomic) or self.check(
            'reads', cells, lanes
        )

    def check(self, kind: str, cells, lanes: Lanes, atomic: bool = False) -> bool:
        """Report a race with the last accesses of a kind, and return whether."""
        last = self.last[kind][cells]
        distance = np.maximum(lanes.distance(last['thread']), last['spread'])
        races = ~lanes.after(last, distance)
        if atomic:
            races &= ~self.atomic[cells]
        if races.any():
            self.race(RACES[kind][int((distance[races] == APART).any())])
        return bool(races.any())

    def note(self, kind: str, cells, lanes: Lanes, spread):
        values = lanes.threads, lanes.epochs, lanes.clocks, spread
        for field, value in zip(ACCESS.names, values, strict=True):
            self.last[kind][field][cells] = value

    def race(self, text: str):
        self.reports.add(f'race in {self.name}: {text}')


class SharedMemory(Region):
    """Hold the shared memory of some programs, and what is in flight there.

    Of each cell `filling` says whether a copy to it is in flight, `reading` whether a
    product of it is, and `unfenced` whether no proxy fence followed a store.
    """

    def __init__(self, data: np.ndarray, grain: int, reports: Reports):
        super().__init__(data, grain, 'shared memory', reports)
        self.filling, self.reading, self.unfenced = np.zeros(
            (3, self.atomic.size), np.bool_
        )

    def load(self, offsets: np.ndarray, size: int, count: int, lanes: Lanes):
        cells = self.cells(offsets, size * count)
        if (self.last['writes']['thread'][cells] == NOBODY).any():
            self.reports.add('a read of shared memory that nothing wrote')
        if self.filling[cells].any():
            self.reports.add('a read of shared memory before the wait for its copy')
        return super().load(offsets, size, count, lanes)

    def store(self, offsets: np.ndarray, values: np.ndarray, lanes: Lanes):
        cells = self.cells(offsets, values.itemsize * values.shape[1])
        self.check_use(cells, 'write')
        super().store(offsets, values, lanes)
        self.unfenced[cells] = True

    def start_copy(self, offsets: np.ndarray, size: int, lanes: Lanes):
        """Note that bytes are in flight, which `finish_copy` stores."""
        cells = self.cells(offsets, size)
        self.check_use(cells, 'copy')
        self.check_write(cells, lanes)
        self.filling[cells] = True

    def finish_copy(self, offsets: np.ndarray, values: np.ndarray, lanes: Lanes):
        self.filling[self.cells(offsets, values.itemsize * values.shape[1])] = False
        self.store(offsets, values, lanes)

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
