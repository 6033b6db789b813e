"""The machine: registers, threads, warps, barriers and the loop that runs them.

Programs of a grid run a batch at a time, all their threads in step. Where threads part,
those at the earliest instruction go on, so they meet again where the paths join.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from .formats import UNSIGNED, constant, type_of
from .memory import ACCESS, UNITS, WARP, GlobalMemory, Region, SharedMemory
from .ptx import Instruction, Kernel

MAX_STEPS = 1_000_000  # of a batch of programs
ADDRESS = re.compile(r'\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]')


class Pending:
    """Hold what was started and not waited for: cp.async or wgmma of some threads."""

    def __init__(self, count: int):
        self.entries: list[list] = []  # content, threads that wait, groups of these
        self.groups = np.zeros(count, np.int64)  # that each thread has committed

    def add(self, content, threads: np.ndarray):
        self.entries.append([content, threads, self.groups[threads]])

    def wait(self, threads: np.ndarray, allowed: int) -> list[tuple]:
        """Return what is done and of which threads, but the last groups `allowed`."""
        found = []
        for entry in self.entries:
            content, waiting, groups = entry
            done = np.isin(waiting, threads) & (groups < self.groups[waiting] - allowed)
            if done.any():
                entry[1:] = waiting[~done], groups[~done]
                found.append((content, waiting[done]))
        self.entries = [entry for entry in self.entries if entry[1].size]
        return found


class Machine:
    """Run a batch of programs of a grid.

    An instruction reads and writes the registers of the threads in `active`, which it
    executes: numbers of the threads in the batch, in order.

    Args:
        kernel: what they run.
        memory: the tensors they may access, with the reports.
        parameters: bytes of the arguments.
        programs: their numbers.
        grid: sizes of the grid.
        threads, shared_bytes: threads and shared memory of a program.
        counts: gets what was executed.
    """

    def __init__(
        self, kernel: Kernel, memory: GlobalMemory, parameters: bytes,
        programs: range, grid: tuple[int, int, int], threads: int,
        shared_bytes: int, counts: Counter,
    ):  # fmt: skip
        self.kernel, self.memory, self.counts = kernel, memory, counts
        self.reports, self.size = memory.reports, threads
        self.everyone = self.active = np.arange(len(programs) * threads)
        self.places = np.zeros_like(self.everyone)  # of the next instructions
        self.now = np.zeros(self.everyone.size, ACCESS)
        numbers = self.everyone + programs[0] * threads
        for unit, count in zip(UNITS, (1, WARP, threads), strict=True):
            self.now[unit] = numbers // count
        program, thread = np.divmod(numbers, threads)
        special = {
            '%tid.x': thread, '%tid.y': 0, '%tid.z': 0, '%laneid': thread % WARP,
            '%ntid.x': threads, '%ntid.y': 1, '%ntid.z': 1,
            '%ctaid.x': program % grid[0], '%ctaid.y': program // grid[0] % grid[1],
            '%ctaid.z': program // (grid[0] * grid[1]),
            **{f'%nctaid.{x}': n for x, n in zip('xyz', grid, strict=True)},
        }  # fmt: skip
        self.registers = {
            name: np.broadcast_to(value, thread.shape).astype(np.uint32)
            for name, value in special.items()
        }
        data = np.frombuffer(parameters, np.uint8)
        self.param = Region(data, 8, 'the parameters', self.reports)
        self.shared_bytes = -(-shared_bytes // 16) * 16
        data = np.full(len(programs) * self.shared_bytes, 0xFF, np.uint8)  # NaN
        self.shared = SharedMemory(data, kernel.grain, self.reports)
        self.copies, self.products = (Pending(thread.size) for _ in range(2))
        self.fresh: set[str] = set()  # registers written since wgmma.fence
        self.kind = ''  # of the instruction

    def run(self, instructions: Mapping[str, Callable]):
        """Run all threads to their end.

        Args:
            instructions: by the first part of a name, functions of the machine and an
                instruction.

        Raises:
            Fault: see there.
        """
        code = self.kernel.code
        with np.errstate(all='ignore'):
            for _ in range(MAX_STEPS):
                place = int(self.places.min())
                if place == len(code):
                    return
                x, here = code[place], self.places == place
                self.kind, self.reports.place = x.name[0], x.place
                self.counts[self.kind] += int(here.reshape(-1, WARP).any(1).sum())
                self.active = self.everyone if here.all() else np.flatnonzero(here)
                self.places[self.active] = place + 1
                if x.guard and not (guarded := self.read(x.guard, 'pred')).all():
                    self.active = self.active[guarded]
                if self.active.size:
                    if self.kind not in instructions:
                        raise NotImplementedError(f'{self.kernel.name}: {x}')
                    instructions[self.kind](self, x)
        raise self.reports.fault(f'no end after {MAX_STEPS} instructions')

    # Registers and other operands of the active threads.

    def read(self, operand: str, kind: str, default: int | None = None) -> np.ndarray:
        """Return an operand as numbers of a type.

        A register that was never written is a fault, unless there is a default for it.
        """
        if operand.startswith('!'):
            return ~self.read(operand[1:], kind)
        described = type_of(kind)
        if operand in self.registers:
            self._note_use(operand)
            bits = self.registers[operand]
            bits = bits if self.active is self.everyone else bits[self.active]
        else:
            if operand.startswith('%'):
                if default is None:
                    raise self.reports.fault(f'{operand} was never written')
                value = default
            elif operand in self.kernel.parameters:
                value, _ = self.kernel.parameters[operand]
            elif re.match(r'(?!true|false)[A-Za-z_$]', operand):
                value = 0  # where shared memory starts
            else:
                value = constant(operand) & (1 << described.bits) - 1
            storage = UNSIGNED.get(described.bits, np.bool_)
            bits = np.full(self.active.size, value, storage)
        return described.decode(bits)

    def write(self, register: str, kind: str, values: np.ndarray):
        """Write numbers of a type to a register."""
        if register == '_':
            return
        if register not in self.registers:
            storage = UNSIGNED.get(self.kernel.width(register), np.bool_)
            self.registers[register] = np.zeros(self.everyone.size, storage)
        self._note_use(register, written=True)
        to = slice(None) if self.active is self.everyone else self.active
        self.registers[register][to] = type_of(kind).encode(values)

    def _note_use(self, register: str, written: bool = False):
        """Report registers that a product in flight still writes or reads."""
        if self.kind == 'wgmma':
            return
        if written:
            self.fresh.add(register)
        for (sums, operands, _), waiting, _ in self.products.entries:
            if register in sums or written and register in operands:
                if np.isin(waiting, self.active).any():
                    self.reports.add('a register of wgmma before its wait')

    def address(self, operand: str) -> np.ndarray:
        """Return the addresses of an operand in brackets."""
        base, offset = ADDRESS.fullmatch(operand).groups()
        return self.read(base, 'u64').astype(np.int64) + int(offset or '0', 0)

    # Memory.

    def parts(
        self, space: str, addresses: np.ndarray, size: int, threads: np.ndarray
    ) -> Iterator[tuple[Region, np.ndarray | slice, np.ndarray, np.ndarray]]:
        """Yield a region, which accesses are in it, their offsets and who does them.

        Raises:
            Fault: an access is out of bounds, or not aligned to its size.
        """
        if (addresses % size).any():
            raise self.reports.fault(f'misaligned access of {size} bytes')
        if space == 'global':
            parts = self.memory.parts(addresses)
        else:
            parts = [(getattr(self, space), slice(None), 0)]
        for region, some, base in parts:
            offsets, first = addresses[some] - base, 0
            end = region.data.size
            if space == 'shared':
                end, first = self.shared_bytes, threads // self.size * self.shared_bytes
            if (bad := (offsets < 0) | (offsets + size > end)).any():
                raise self.reports.fault(
                    f'out of bounds: {bad.sum()} threads, at byte {offsets[bad][0]} of '
                    f'{region.name} with {end}'
                )
            yield region, some, offsets + first, self.now.take(threads[some])[:, None]

    def load(self, space: str, addresses, size: int, count: int = 1, threads=None):
        """Return (accesses, count) numbers, by default one access a thread."""
        threads = self.active if threads is None else threads
        result = np.empty((len(addresses), count), UNSIGNED[8 * size])
        total = size * count
        for region, some, offsets, now in self.parts(space, addresses, total, threads):
            result[some] = region.load(offsets, size, count, now)
        return result

    def store(self, space: str, addresses, values, threads=None, atomic: bool = False):
        """Store or add values (accesses, count), and return what was there."""
        threads = self.active if threads is None else threads
        before, size = np.empty_like(values), values.itemsize * values.shape[1]
        for region, some, offsets, now in self.parts(space, addresses, size, threads):
            now['atomic'] = atomic
            before[some] = region.store(offsets, values[some], now)
        return before

    # Warps and barriers.

    def whole(self, count: int, what: str):
        """Raise a fault if only a part of the `count` threads of a unit is active."""
        units, active = np.unique(self.active // count, return_counts=True)
        if (active != count).any():
            raise self.reports.fault(f'{what} in a part of {count} threads')

    def barrier(self):
        """Meet all threads of each program."""
        there = self.places == len(self.kernel.code)
        there[self.active] = True
        if not there.reshape(-1, self.size).all(1)[self.active // self.size].all():
            raise self.reports.fault('a barrier that not all threads reach')
        self.now['epoch'][self.active] += 1
        self.now['clock'][self.active] += 1


def branch(m: Machine, x: Instruction):
    m.places[m.active] = m.kernel.labels[x.operands[0]]


def end(m: Machine, x: Instruction):
    m.places[m.active] = len(m.kernel.code)
