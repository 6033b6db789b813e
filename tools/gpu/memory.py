"""Memory of the machine, which knows who last wrote and read each of its cells.

Two accesses of a cell, one of which is a write, race unless they are of one thread, or
a barrier lies between them: one of the program, or of the warp for threads of a warp.
Two programs of a grid are never in order, except for atomic additions.
"""

import ctypes
import hashlib
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from .formats import UNSIGNED

NOBODY, SEVERAL = -1, -2
WARP = 32
TRUNCATED = 'a number that a tensor core truncates to TF32'
WIDEST = 16  # bytes of an access
GAP = 1 << 32  # between tensors, so that no small mistake ends in another one


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

    @property
    def warps(self):
        return self.threads // WARP

    @property
    def programs(self):
        return self.threads // self.size


class History:
    """Remember the last write and the reads since the last barrier of each cell."""

    def __init__(self, cells: int):
        self.writer, self.reader, self.reader_warp, self.reader_program = np.full(
            (4, cells), NOBODY, np.int32
        )
        self.write_epoch, self.write_clock, self.read_epoch, self.read_clock = np.zeros(
            (4, cells), np.int32
        )
        self.atomic = np.zeros(cells, np.bool_)

    def read(self, cells, lanes: Lanes) -> str:
        """Note reads, and return what they race with, or an empty string."""
        race = self._races_with_write(cells, lanes)
        self._note_reads(cells, lanes)
        return race

    def write(self, cells, lanes: Lanes, atomic: bool = False) -> str:
        """Note writes, and return what they race with, or an empty string."""
        race = self.would_race(cells, lanes, atomic)
        self.writer[cells] = lanes.threads
        self.write_epoch[cells], self.write_clock[cells] = lanes.epochs, lanes.clocks
        self.atomic[cells] = atomic
        last = self.writer[cells]
        if not atomic and (last // lanes.size != lanes.programs).any():
            return race or 'two programs write one place'
        return race

    def would_race(self, cells, lanes: Lanes, atomic: bool = False) -> str:
        """Return what a write would race with, or an empty string."""
        if race := self._races_with_write(cells, lanes, atomic):
            return race
        program = self.reader_program[cells]
        here = program == lanes.programs
        now = here & (self.read_epoch[cells] == lanes.epochs)
        other_warp = now & (self.reader_warp[cells] != lanes.warps)
        same = now & (self.read_clock[cells] == lanes.clocks)
        other_thread = same & (self.reader[cells] != lanes.threads)
        if ((program != NOBODY) & ~here).any():
            return 'a write of what another program reads'
        if other_warp.any() or other_thread.any():
            return 'a write after a read without a barrier'
        return ''

    def _races_with_write(self, cells, lanes: Lanes, atomic: bool = False) -> str:
        writer = self.writer[cells]
        other = (writer != NOBODY) & (writer != lanes.threads)
        if atomic:
            other &= ~self.atomic[cells]
        if not other.any():
            return ''
        if (other & (writer // lanes.size != lanes.programs)).any():
            return 'an access of what another program writes'
        same_warp = writer // WARP == lanes.warps
        ordered = np.where(
            same_warp,
            self.write_clock[cells] < lanes.clocks,
            self.write_epoch[cells] < lanes.epochs,
        )
        if (other & ~ordered).any():
            return 'an access after a write without a barrier'
        return ''

    def _note_reads(self, cells, lanes: Lanes):
        """Add readers. Those before the last barrier are forgotten."""
        program, warp = self.reader_program[cells], self.reader_warp[cells]
        here = (program == lanes.programs) | (program == NOBODY)
        stale = here & (self.read_epoch[cells] < lanes.epochs) | (program == NOBODY)
        own_warp = stale | (warp == lanes.warps)
        own = own_warp & (
            stale
            | (self.read_clock[cells] < lanes.clocks)
            | (self.reader[cells] == lanes.threads)
        )
        self.reader_program[cells] = np.where(here, lanes.programs, SEVERAL)
        self.reader_warp[cells] = np.where(own_warp, lanes.warps, SEVERAL)
        self.reader[cells] = np.where(own, lanes.threads, SEVERAL)
        self.read_epoch[cells], self.read_clock[cells] = lanes.epochs, lanes.clocks
        # Lanes of this very access that share a cell: the last one has won above.
        for kept, mine in (
            (self.reader_program, lanes.programs),
            (self.reader_warp, lanes.warps),
            (self.reader, lanes.threads),
        ):
            now = kept[cells]
            shared = (now != mine) & (now != SEVERAL)
            if shared.any():
                kept[cells[shared]] = SEVERAL


class Region:
    """Hold bytes and their history.

    Args:
        data: the bytes.
        grain: bytes of a cell, the smallest access.
        name: what it is, for reports.
        reports: gets what is wrong.
    """

    def __init__(self, data: np.ndarray, grain: int, name: str, reports: Reports):
        self.data, self.grain, self.name, self.reports = data, grain, name, reports
        self.history = History(-(-data.size // grain))

    def words(self, size: int) -> np.ndarray:
        """Return a view as unsigned integers of some bytes."""
        return self.data[: self.data.size // size * size].view(UNSIGNED[8 * size])

    def cells(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """Return the cells (accesses, cells of an access) of some bytes at offsets."""
        count = max(1, size // self.grain)
        return (offsets // self.grain)[:, None] + np.arange(count)

    def load(self, offsets: np.ndarray, size: int, count: int, lanes: Lanes):
        """Return (accesses, count) numbers of `size` bytes."""
        self.note(self.history.read(self.cells(offsets, size * count), lanes))
        return self.words(size)[(offsets // size)[:, None] + np.arange(count)]

    def store(self, offsets: np.ndarray, size: int, values: np.ndarray, lanes: Lanes):
        """Store values (accesses, count) of `size` bytes."""
        cells = self.cells(offsets, size * values.shape[1])
        self.note(self.history.write(cells, lanes))
        places = (offsets // size)[:, None] + np.arange(values.shape[1])
        words = self.words(size)
        words[places] = values
        if (words[places] != values).any():
            self.note('threads that write different numbers to one place')

    def add(self, offsets, size: int, values: np.ndarray, lanes: Lanes, dtype):
        """Add values (accesses, count) atomically, and return what was there."""
        cells = self.cells(offsets, size * values.shape[1])
        self.note(self.history.write(cells, lanes, atomic=True))
        places = (offsets // size)[:, None] + np.arange(values.shape[1])
        words = self.words(size).view(dtype)
        before = words[places]
        np.add.at(words, places, values)
        return before

    def note(self, race: str):
        if race:
            self.reports.add(f'race in {self.name}: {race}')


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
            base = (
                start if self.real else GAP * (len(self.regions) + 1) + start % WIDEST
            )
            self.starts[start] = base
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

    def bits(self) -> list[np.ndarray]:
        """Return copies of all tensors, as bytes."""
        return [region.data.copy() for _, region in self.regions]

    def restore(self, bits: list[np.ndarray]):
        """Write what `bits` returned."""
        for (_, region), data in zip(self.regions, bits, strict=True):
            region.data[:] = data

    def parts(self, addresses: np.ndarray, size: int):
        """Yield a region, which accesses are in it (None for all), and their offsets.

        Raises:
            Fault: an access is not in a tensor, or not aligned to its size.
        """
        if (addresses % np.uint64(size)).any():
            raise self.reports.fault(f'misaligned access of {size} bytes')
        bases = np.array([base for base, _ in self.regions], np.uint64)
        found = np.searchsorted(bases, addresses, 'right') - 1
        for i in np.unique(found):
            base, region = self.regions[i]  # the last one for an address before all
            chosen = None if (found == i).all() else found == i
            part = addresses if chosen is None else addresses[chosen]
            offsets = part.astype(np.int64) - base
            if (bad := (offsets < 0) | (offsets + size > region.data.size)).any():
                raise self.reports.fault(
                    f'out of bounds: {bad.sum()} threads, at byte {offsets[bad][0]} of '
                    f'{region.name} with {region.data.size}'
                )
            yield region, chosen, offsets
