"""Decode instructions that move numbers: memory, copies, shuffles and barriers."""

import numpy as np

from .formats import UNSIGNED, type_of
from .machine import Machine, addresser, decoder, reader, writer
from .memory import WARP
from .ptx import Instruction, Kernel, elements


def chosen_threads(machine: Machine, mask) -> np.ndarray:
    return np.arange(machine.count) if mask is None else np.flatnonzero(mask)


def spread(machine: Machine, chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values of some threads as a value for each thread, 0 for the others."""
    result = np.zeros(machine.count, values.dtype)
    result[chosen] = values
    return result


def shared_offsets(machine: Machine, chosen, addresses, size: int) -> np.ndarray:
    """Return places in the shared memory of the batch.

    Raises:
        Fault: an address is out of bounds or misaligned.
    """
    offsets = addresses.astype(np.int64)
    if len(offsets) and (offsets.max() + size > machine.shared_bytes):
        raise machine.reports.fault(
            f'out of bounds: byte {offsets.max()} of shared memory, which has '
            f'{machine.shared_bytes}'
        )
    if (offsets % size).any():
        raise machine.reports.fault(f'misaligned access of {size} bytes')
    return offsets + machine.local_program[chosen] * machine.shared_bytes


def load_shared(machine: Machine, chosen, offsets, size: int, count: int):
    """Return (accesses, count) numbers that were written and have arrived."""
    region = machine.shared
    cells = region.cells(offsets, size * count)
    if (region.history.writer[cells] < 0).any():
        machine.reports.add('a read of shared memory that nothing wrote')
    if machine.filling[cells].any():
        machine.reports.add('a read of shared memory before the wait for its copy')
    return region.load(offsets, size, count, machine.lanes(chosen))


def store_shared(machine: Machine, chosen, offsets, size: int, values: np.ndarray):
    """Store (accesses, count) numbers where no copy or product is in flight."""
    cells = machine.shared.cells(offsets, size * values.shape[1])
    if (machine.filling[cells] | machine.reading[cells]).any():
        machine.reports.add('a write of shared memory before the wait for its use')
    machine.shared.store(offsets, size, values, machine.lanes(chosen))
    machine.unfenced[cells] = True


def load_global(machine: Machine, chosen, addresses, size: int, count: int):
    result = np.empty((len(chosen), count), UNSIGNED[8 * size])
    for region, part, offsets in machine.memory.parts(addresses, size * count):
        some = slice(None) if part is None else part
        lanes = machine.lanes(chosen[some])
        result[some] = region.load(offsets, size, count, lanes)
    return result


def space_of(x: Instruction) -> str:
    return next(p.split('::')[0] for p in x.name[1:] if p[:2] in ('gl', 'sh', 'pa'))


@decoder('ld')
def load(x: Instruction, kernel: Kernel):
    targets, space = elements(x.operands[0]), space_of(x)
    signed = x.type[0] == 's'  # extended to the width of the register
    kinds = [f's{kernel.width(t)}' if signed else x.type for t in targets]
    writes = [writer(*pair, kernel) for pair in zip(targets, kinds, strict=True)]
    address = addresser(x.operands[1], 32 if space == 'shared' else 64)
    described, size, count = type_of(x.type), type_of(x.type).bits // 8, len(targets)

    def run(machine: Machine, mask):
        chosen = chosen_threads(machine, mask)
        addresses = address(machine)[chosen]
        if space == 'param':
            words = machine.parameters[: machine.parameters.size // size * size]
            places = addresses.astype(np.int64)[:, None] // size + np.arange(count)
            values = words.view(UNSIGNED[8 * size])[places]
        elif space == 'shared':
            offsets = shared_offsets(machine, chosen, addresses, size * count)
            values = load_shared(machine, chosen, offsets, size, count)
        else:
            values = load_global(machine, chosen, addresses, size, count)
        for write, column in zip(writes, values.T, strict=True):
            column = spread(machine, chosen, np.ascontiguousarray(column))
            write(machine, described.decode(column), mask)

    return run


@decoder('st')
def store(x: Instruction, kernel: Kernel):
    space = space_of(x)
    described, size = type_of(x.type), type_of(x.type).bits // 8
    address = addresser(x.operands[0], 32 if space == 'shared' else 64)
    reads = [reader(source, x.type) for source in elements(x.operands[1])]

    def run(machine: Machine, mask):
        chosen = chosen_threads(machine, mask)
        columns = [machine.full(described.encode(read(machine))) for read in reads]
        values = np.stack([column[chosen] for column in columns], 1)
        addresses, total = address(machine)[chosen], size * len(reads)
        if space == 'shared':
            offsets = shared_offsets(machine, chosen, addresses, total)
            store_shared(machine, chosen, offsets, size, values)
            return None
        for region, part, offsets in machine.memory.parts(addresses, total):
            some = slice(None) if part is None else part
            region.store(offsets, size, values[some], machine.lanes(chosen[some]))

    return run


@decoder('atom', 'red')
def add_atomically(x: Instruction, kernel: Kernel):
    if 'add' not in x.name or space_of(x) != 'global':
        raise NotImplementedError(str(x))
    returns = x.name[0] == 'atom'
    target, sources = x.operands[-2], elements(x.operands[-1])
    writes = elements(x.operands[0]) if returns else []
    writes = [writer(register, x.type, kernel) for register in writes]
    address, reads = addresser(target, 64), [reader(s, x.type) for s in sources]
    size = type_of(x.type).bits // 8

    def run(machine: Machine, mask):
        chosen = chosen_threads(machine, mask)
        columns = [machine.full(read(machine))[chosen] for read in reads]
        values = np.stack(columns, 1)
        before, addresses = np.zeros_like(values), address(machine)[chosen]
        total = size * len(reads)
        for region, part, offsets in machine.memory.parts(addresses, total):
            some = slice(None) if part is None else part
            lanes = machine.lanes(chosen[some])
            before[some] = region.add(offsets, size, values[some], lanes, values.dtype)
        for write, column in zip(writes, before.T[: len(writes)], strict=True):
            write(machine, spread(machine, chosen, column), mask)

    return run


@decoder('cp')
def copy_asynchronously(x: Instruction, kernel: Kernel):
    """Decode cp.async. Places in shared memory are in flight until their wait."""
    if x.name[:2] != ('cp', 'async') or 'bulk' in x.name:
        raise NotImplementedError(str(x))
    if 'commit_group' in x.name:
        return lambda machine, mask: machine.copies.commit(machine.everyone(mask))
    if 'wait_group' in x.name or 'wait_all' in x.name:
        allowed = int(x.operands[0], 0) if x.operands else None
        return lambda machine, mask: _finish_copies(machine, mask, allowed)
    size = int(x.operands[2], 0)
    target, source = addresser(x.operands[0], 32), addresser(x.operands[1], 64)
    filled = reader(x.operands[3] if len(x.operands) > 3 else str(size), 'u32')

    def run(machine: Machine, mask):
        chosen = chosen_threads(machine, mask)
        places = target(machine)[chosen]
        offsets = shared_offsets(machine, chosen, places, size)
        values = np.zeros((len(chosen), size // 4), np.uint32)
        given = machine.full(filled(machine))[chosen]
        for count in np.unique(given[given > 0]):  # bytes; the others are zeros
            some, addresses = given == count, source(machine)[chosen[given == count]]
            if (addresses % np.uint64(size)).any():
                raise machine.reports.fault(f'misaligned copy of {size} bytes')
            words = load_global(machine, chosen[some], addresses, 4, int(count) // 4)
            values[some, : int(count) // 4] = words
        region, lanes = machine.shared, machine.lanes(chosen)
        cells = region.cells(offsets, size)
        if (machine.filling[cells] | machine.reading[cells]).any():
            machine.reports.add('a copy to shared memory before the wait for its use')
        region.note(region.history.would_race(cells, lanes))
        machine.filling[cells] = True
        everything = np.zeros((machine.count, values.shape[1]), np.uint32)
        everything[chosen] = values
        to = spread(machine, chosen, offsets)
        machine.copies.add((to, everything), machine.everyone(mask).copy())

    return run


def _finish_copies(machine: Machine, mask, allowed: int | None):
    for (offsets, values), done in machine.copies.wait(machine.everyone(mask), allowed):
        chosen = np.flatnonzero(done)
        cells = machine.shared.cells(offsets[chosen], 4 * values.shape[1])
        machine.filling[cells] = False
        store_shared(machine, chosen, offsets[chosen], 4, values[chosen])


@decoder('bar', 'barrier')
def barrier(x: Instruction, kernel: Kernel):
    if x.name[:2] == ('bar', 'warp'):
        return _meet_warp
    if x.name[1] != 'sync' and x.name[1:3] != ('cta', 'sync') or x.operands[0] != '0':
        raise NotImplementedError(str(x))
    return Machine.barrier


def _meet_warp(machine: Machine, mask):
    machine.whole_warps(mask, 'bar.warp.sync')
    machine.clocks = machine.clocks + machine.everyone(mask)


@decoder('fence', 'membar')
def fence(x: Instruction, kernel: Kernel):
    """Let wgmma see what the threads stored to shared memory before."""
    if 'proxy' not in x.name:
        return lambda machine, mask: None

    def run(machine: Machine, mask):
        writers = machine.shared.history.writer
        fencing = machine.threads[machine.everyone(mask)]
        machine.unfenced &= ~np.isin(writers, fencing)

    return run


@decoder('griddepcontrol')
def nothing(x: Instruction, kernel: Kernel):
    return lambda machine, mask: None


@decoder('shfl')
def shuffle(x: Instruction, kernel: Kernel):
    targets, way = x.operands[0].split('|'), x.name[2]
    reads = [reader(operand, 'b32') for operand in x.operands[1:4]]
    write = writer(targets[0], 'b32', kernel)
    write_valid = writer(targets[1], 'pred', kernel) if len(targets) > 1 else None

    def run(machine: Machine, mask):
        value, other, limits = (
            machine.full(read(machine)).reshape(-1, WARP) for read in reads
        )
        lane, other = np.arange(WARP)[None], other.astype(np.int64) & 31
        segment, limit = limits.astype(np.int64) >> 8 & 31, limits.astype(np.int64) & 31
        low, high = lane & segment, lane & segment | limit & ~segment
        source = {
            'bfly': lane ^ other, 'idx': low | other & ~segment,
            'up': lane - other, 'down': lane + other,
        }[way]  # fmt: skip
        valid = source >= high if way == 'up' else source <= high
        source = np.where(valid, source, lane)
        if mask is not None:
            active = mask.reshape(-1, WARP)
            if (active & ~np.take_along_axis(active, source, 1)).any():
                raise machine.reports.fault('a shuffle from a thread that is not there')
        result = np.take_along_axis(value, source, 1).reshape(-1)
        write(machine, result, mask)
        if write_valid:
            write_valid(machine, valid.reshape(-1), mask)

    return run


REDUCTIONS = {
    'add': np.add, 'min': np.minimum, 'max': np.maximum,
    'and': np.bitwise_and, 'or': np.bitwise_or, 'xor': np.bitwise_xor,
}  # fmt: skip


@decoder('redux')
def reduce_warp(x: Instruction, kernel: Kernel):
    """Decode redux.sync, which gives each member of a warp the same result."""
    reduce = REDUCTIONS[x.name[2]]
    read, write = reader(x.operands[1], x.type), writer(x.operands[0], x.type, kernel)
    read_members = reader(x.operands[2], 'b32')

    def run(machine: Machine, mask):
        machine.whole_warps(mask, 'redux.sync')
        if (machine.full(read_members(machine)) != 2**WARP - 1).any():
            raise NotImplementedError(f'{x} of a part of a warp')
        values = machine.full(read(machine)).reshape(-1, WARP)
        result = reduce.reduce(values, 1, dtype=values.dtype)
        write(machine, result.repeat(WARP), mask)

    return run
