"""The machine: registers, threads, warps, barriers and the loop that runs them.

Programs of a grid run a batch at a time, all their threads in step. Where threads part,
those at the earliest instruction go on, so they meet again where the paths join.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from .formats import UNSIGNED, constant, type_of
from .memory import WARP, GlobalMemory, Lanes, Region, Reports
from .ptx import Instruction, Kernel

MAX_STEPS = 1_000_000  # of a batch of programs
BATCH = 4096  # threads
ADDRESS = re.compile(r'\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]')
# By the first part of a name: functions that take an instruction and a kernel, and
# return what to do with a machine and a mask of its threads (None for all).
DECODERS: dict[str, Callable] = {}


def decoder(*names: str) -> Callable[[Callable], Callable]:
    """Register a function that decodes instructions."""

    def register(function):
        DECODERS.update(dict.fromkeys(names, function))
        return function

    return register


def reader(operand: str, kind: str, default: int | None = None) -> Callable:
    """Return a function of a machine that returns an operand as numbers of a type.

    A register that was never written is a fault, unless there is a default for it.
    """
    described = type_of(kind)
    if operand.startswith('!'):
        inner = reader(operand[1:], kind)
        return lambda machine: ~inner(machine)
    if operand.startswith('%'):
        return lambda machine: described.decode(machine.register(operand, default))
    if re.match(r'[A-Za-z_$]', operand) and operand not in ('true', 'false'):
        return lambda machine: described.decode(machine.symbol(operand))
    value = constant(operand)
    if kind != 'pred':
        value = UNSIGNED[max(16, described.bits)](value & (1 << described.bits) - 1)
    else:
        value = np.bool_(value)
    number = described.decode(value)
    return lambda machine: number


def writer(register: str, kind: str, kernel: Kernel) -> Callable:
    """Return a function that writes numbers of a type where a mask says so."""
    if register == '_':
        return lambda machine, values, mask: None
    encode, width = type_of(kind).encode, kernel.width(register)
    storage = np.bool_ if width == 1 else UNSIGNED[width]

    def write(machine, values, mask):
        bits = encode(values).astype(storage, copy=False)
        if mask is not None:
            bits = np.where(mask, bits, machine.registers.get(register, storage(0)))
        machine.registers[register] = bits

    return write


def addresser(operand: str, bits: int) -> Callable:
    """Return a function of a machine that returns the addresses of an operand."""
    base, offset = ADDRESS.fullmatch(operand).groups()
    base = reader(base, f'u{bits}')
    offset = UNSIGNED[bits](int(offset or '0', 0) & (1 << bits) - 1)
    return lambda machine: machine.full(base(machine) + offset)


class Step:
    """Hold a decoded instruction."""

    def __init__(self, instruction: Instruction, kernel: Kernel):
        self.instruction, self.kind = instruction, instruction.name[0]
        guard = instruction.guard
        self.guard = guard and reader('!' * instruction.negated + guard, 'pred')
        self.place = f'{instruction.place} {".".join(instruction.name)}'
        self.target = self.run = None
        if self.kind == 'bra':
            self.target = kernel.labels[instruction.operands[0]]
        elif self.kind not in ('ret', 'exit'):
            if self.kind not in DECODERS:
                raise NotImplementedError(f'{kernel.name}: {instruction}')
            self.run = DECODERS[self.kind](instruction, kernel)

    @functools.cached_property
    def written(self) -> set[str]:
        """Return the registers that the instruction writes."""
        if self.kind in ('st', 'bra', 'ret', 'exit', 'red', 'bar', 'stmatrix', 'cp'):
            return set()
        return set(re.findall(r'%\w+', ' '.join(self.instruction.operands[:1])))

    @functools.cached_property
    def used(self) -> set[str]:
        """Return the registers that the instruction names."""
        return set(re.findall(r'%\w+', ' '.join(self.instruction.operands)))


class Code:
    """Hold a kernel that is decoded."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.steps = [Step(x, kernel) for x in kernel.code]
        self.has_wgmma = any(step.kind == 'wgmma' for step in self.steps)
        bytes_of_shared = [
            type_of(x.type).bits // 8
            for x in kernel.code
            if x.name[0] in ('ld', 'st') and x.name[1].startswith('shared')
        ]
        self.grain = min(bytes_of_shared, default=2)


class Pending:
    """Hold what was started and not waited for: cp.async or wgmma of some threads."""

    def __init__(self, count: int):
        self.entries: list[list] = []  # content, threads that wait for it, groups
        self.groups = np.zeros(count, np.int64)  # that each thread has committed

    def add(self, content, mask: np.ndarray):
        self.entries.append([content, mask, self.groups.copy()])

    def commit(self, mask: np.ndarray):
        self.groups = self.groups + mask

    def wait(self, mask: np.ndarray, allowed: int | None) -> Iterator[tuple]:
        """Yield what is done, and of which threads; None waits for all."""
        for entry in self.entries:
            content, waiting, group = entry
            done = waiting & mask
            if allowed is not None:
                done &= group < self.groups - allowed
            if done.any():
                entry[1] = waiting & ~done
                yield content, done
        self.entries = [entry for entry in self.entries if entry[1].any()]


class Machine:
    """Run a batch of programs of a grid.

    Args:
        code: what they run.
        memory: the tensors they may access.
        parameters: bytes of the arguments.
        programs: their numbers.
        grid: sizes of the grid.
        threads, shared_bytes: threads and shared memory of a program.
        reports, counts: get what is wrong, and what was executed.
    """

    def __init__(
        self, code: Code, memory: GlobalMemory, parameters: bytes,
        programs: np.ndarray, grid: tuple[int, int, int], threads: int,
        shared_bytes: int, reports: Reports, counts: Counter,
    ):  # fmt: skip
        self.code, self.memory, self.reports, self.counts = (
            code,
            memory,
            reports,
            counts,
        )
        self.parameters = np.frombuffer(parameters, np.uint8)
        size = self.size = threads
        count = self.count = len(programs) * size
        self.local_program = np.repeat(np.arange(len(programs)), size)
        program = np.repeat(np.asarray(programs, np.int64), size)
        thread = np.tile(np.arange(size), len(programs))
        self.threads = (program * size + thread).astype(np.int32)
        self.epochs, self.clocks = np.zeros((2, count), np.int32)
        self.exited = np.zeros(count, np.bool_)
        special = {
            '%tid.x': thread, '%tid.y': 0, '%tid.z': 0,
            '%ntid.x': size, '%ntid.y': 1, '%ntid.z': 1, '%laneid': thread % WARP,
            '%ctaid.x': program % grid[0], '%ctaid.y': program // grid[0] % grid[1],
            '%ctaid.z': program // (grid[0] * grid[1]),
            **{f'%nctaid.{x}': n for x, n in zip('xyz', grid, strict=True)},
        }  # fmt: skip
        self.registers = {
            k: np.asarray(x).astype(np.uint32) for k, x in special.items()
        }
        self.shared_bytes = -(-shared_bytes // 16) * 16
        data = np.full(len(programs) * self.shared_bytes, 0xFF, np.uint8)  # NaN
        self.shared = Region(data, code.grain, 'shared memory', reports)
        cells = self.shared.history.writer.size
        self.filling, self.reading, self.unfenced = np.zeros((3, cells), np.bool_)
        self.copies, self.products = Pending(count), Pending(count)
        self.fresh: set[str] = set()  # registers written since wgmma.fence

    def register(self, name: str, default: int | None = None):
        if name not in self.registers:
            if default is None:
                raise self.reports.fault(f'{name} was never written')
            return UNSIGNED[self.code.kernel.width(name)](default)
        return self.registers[name]

    def symbol(self, name: str):
        """Return the address of a parameter, or of shared memory, which starts at 0."""
        offset, _ = self.code.kernel.parameters.get(name, (0, ''))
        return np.uint64(offset)

    def full(self, values) -> np.ndarray:
        """Return values of all threads, of those that are one for all."""
        return np.broadcast_to(values, (self.count,))

    def everyone(self, mask) -> np.ndarray:
        return np.ones(self.count, np.bool_) if mask is None else mask

    def lanes(self, chosen: np.ndarray) -> Lanes:
        """Return who the threads with these numbers in the batch are."""
        fields = self.threads, self.epochs, self.clocks
        return Lanes(*(x[chosen][:, None] for x in fields), self.size)

    def whole_warps(self, mask, what: str):
        """Raise a fault if a mask has a part of a warp."""
        if mask is not None:
            warps = mask.reshape(-1, WARP)
            if (warps.any(1) != warps.all(1)).any():
                raise self.reports.fault(f'{what} in a part of a warp')

    def warps_in(self, mask) -> int:
        if mask is None:
            return self.count // WARP
        return int(mask.reshape(-1, WARP).any(1).sum())

    def run(self):
        """Run all threads to their end.

        Raises:
            Fault: see there.
        """
        steps, place, places = self.code.steps, 0, None
        with np.errstate(all='ignore'):
            for _ in range(MAX_STEPS):
                if places is None:
                    active = ~self.exited if self.exited.any() else None
                else:
                    place = int(places[~self.exited].min(initial=len(steps)))
                    active = ~self.exited & (places == place)
                    if (active | self.exited).all():
                        places, active = None, active if self.exited.any() else None
                if place == len(steps) or self.exited.all():
                    return
                step = steps[place]
                self.reports.place = step.place
                mask = self._guarded(step, active)
                self.counts[step.kind] += self.warps_in(active)
                following = place + 1
                if step.kind == 'bra':
                    taken = self.everyone(mask)
                    following = np.where(taken, step.target, place + 1)
                    if places is None and (taken == taken[0])[~self.exited].all():
                        first = np.flatnonzero(~self.exited)[0]
                        following = int(following[first])
                elif step.run is None:
                    self.exited |= self.everyone(mask)
                elif mask is None or mask.any():
                    self._check_pending(step, mask)
                    step.run(self, mask)
                if places is not None:
                    places = np.where(active, following, places)
                elif isinstance(following, np.ndarray):
                    places = following
                else:
                    place = following
        raise self.reports.fault(f'no end after {MAX_STEPS} instructions')

    def _guarded(self, step: Step, active):
        if not step.guard:
            return active
        mask = self.full(step.guard(self))
        return mask if active is None else mask & active

    def _check_pending(self, step: Step, mask):
        """Report registers that a product in flight still writes or reads."""
        if not self.code.has_wgmma:
            return
        if step.kind != 'wgmma':
            for (sums, operands, _), waiting, _ in self.products.entries:
                early = step.used & sums or step.written & operands
                if early and (waiting & self.everyone(mask)).any():
                    self.reports.add('a register of wgmma before its wait')
            self.fresh |= step.written

    def barrier(self, mask):
        """Meet all threads of each program."""
        if mask is not None:
            programs = (mask | self.exited).reshape(-1, self.size)
            reached = mask.reshape(-1, self.size).any(1)
            if (reached & ~programs.all(1)).any():
                raise self.reports.fault('a barrier that not all threads reach')
        arrived = self.everyone(mask)
        self.epochs = self.epochs + arrived
        self.clocks = self.clocks + arrived
