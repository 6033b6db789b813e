"""Decode the products of tensor cores, and the loads and stores of their operands."""

import re

import numpy as np

from .formats import UNSIGNED, type_of
from .machine import Machine, addresser, decoder, reader, writer
from .memory import TRUNCATED, WARP
from .ptx import Instruction, Kernel, elements
from .transfers import (
    chosen_threads,
    load_shared,
    shared_offsets,
    spread,
    store_shared,
)

GROUP = 4 * WARP  # threads of a wgmma
LANE = np.arange(WARP)
ROW, COLUMN = LANE // 4, LANE % 4  # of a thread in a tile of 8 rows
SWIZZLES = {0: (16, 0), 1: (128, 7), 2: (64, 3), 3: (32, 1)}  # bytes of a row, bits


def rows_of_tiles(machine: Machine, mask, address, transposed: bool, tile: int):
    """Return the threads, and the offsets and addresses of their two numbers of 16 bits
    in the tile of 8 x 8 whose rows threads 8 * tile to 8 * tile + 7 point at."""
    machine.whole_warps(mask, 'a matrix access')
    rows = machine.full(address(machine)).reshape(-1, WARP)[:, 8 * tile : 8 * tile + 8]
    if (rows[machine.everyone(mask).reshape(-1, WARP)[:, 0]] % 16).any():
        raise machine.reports.fault('misaligned row of a matrix')
    chosen, halves = chosen_threads(machine, mask), []
    for half in range(2):
        row, column = ROW, 2 * COLUMN + half
        if transposed:
            row, column = column, row
        places = (rows[:, row] + (2 * column).astype(np.uint32)).reshape(-1)[chosen]
        halves.append((shared_offsets(machine, chosen, places, 2), places))
    return chosen, halves


@decoder('ldmatrix')
def load_matrix(x: Instruction, kernel: Kernel):
    writes = [writer(target, 'b32', kernel) for target in elements(x.operands[0])]
    address, transposed = addresser(x.operands[1], 32), 'trans' in x.name

    def run(machine: Machine, mask):
        results = []
        for i in range(len(writes)):
            chosen, halves = rows_of_tiles(machine, mask, address, transposed, i)
            low, high = (
                load_shared(machine, chosen, offsets, 2, 1)[:, 0].astype(np.uint32)
                for offsets, _ in halves
            )
            results.append(spread(machine, chosen, low | high << np.uint32(16)))
        for write, result in zip(writes, results, strict=True):
            write(machine, result, mask)

    return run


@decoder('stmatrix')
def store_matrix(x: Instruction, kernel: Kernel):
    reads = [reader(source, 'b32') for source in elements(x.operands[1])]
    address, transposed = addresser(x.operands[0], 32), 'trans' in x.name

    def run(machine: Machine, mask):
        places, values = [], []
        for i, read in enumerate(reads):
            chosen, halves = rows_of_tiles(machine, mask, address, transposed, i)
            value = machine.full(read(machine))[chosen]
            for half, (offsets, _) in enumerate(halves):
                places.append(offsets)
                values.append((value >> np.uint32(16 * half)).astype(np.uint16))
        values, threads = np.concatenate(values)[:, None], np.tile(chosen, len(places))
        store_shared(machine, threads, np.concatenate(places), 2, values)

    return run


def decode(machine: Machine, bits: np.ndarray, kind: str) -> np.ndarray:
    """Return the numbers of operands, and report bits that TF32 has no place for."""
    if kind == 'tf32' and (bits & np.uint32(0x1FFF)).any():
        machine.reports.add(TRUNCATED)
    return type_of(kind).decode(bits)


def numbers(machine: Machine, reads, kind: str, threads: int) -> np.ndarray:
    """Return (groups, threads, numbers) of registers, two of each for 16 bits."""
    columns = []
    for read in reads:
        bits = machine.full(read(machine))
        parts = [bits] if kind == 'tf32' else [bits & np.uint32(0xFFFF), bits >> 16]
        columns += [decode(machine, x, kind).reshape(-1, threads) for x in parts]
    return np.stack(columns, -1)


def left_places(depth: int, per_register: int) -> list[tuple]:
    """Return row and column of the numbers of the left operand, (16, depth).

    The sums lie like a left operand of pairs.
    """
    return [
        (ROW + row, first + per_register * COLUMN + i)
        for first in range(0, depth, 4 * per_register)
        for row in (0, 8)
        for i in range(per_register)
    ]


def right_places(depth: int, per_register: int) -> list[tuple]:
    """Return row and column of the numbers of the right operand, (depth, 8)."""
    return [
        (first + per_register * COLUMN + i, ROW)
        for first in range(0, depth, 4 * per_register)
        for i in range(per_register)
    ]


def gather(shape: tuple, places: list[tuple], values: np.ndarray) -> np.ndarray:
    """Return matrices (groups, *shape) of the values that threads hold."""
    matrix = np.zeros((len(values), *shape), np.float32)
    for (row, column), value in zip(places, np.moveaxis(values, -1, 0), strict=True):
        matrix[:, row, column] = value
    return matrix


def by_warps(places: list[tuple]) -> list[tuple]:
    """Return places of four warps, each with its 16 rows."""
    shift = np.repeat(16 * np.arange(4), WARP)
    return [(np.tile(row, 4) + shift, np.tile(column, 4)) for row, column in places]


def shape_and_kind(x: Instruction) -> tuple[int, int, str, int]:
    """Return columns, depth, type and numbers of a register of the operands."""
    columns, depth = re.search(r'\.m\d+n(\d+)k(\d+)\.', '.'.join(x.name)).groups()
    kind = next(part for part in reversed(x.name) if part in ('tf32', 'bf16', 'f16'))
    return int(columns), int(depth), kind, 1 if kind == 'tf32' else 2


@decoder('mma')
def multiply(x: Instruction, kernel: Kernel):
    columns, depth, kind, per_register = shape_and_kind(x)
    sums, left, right, before = map(elements, x.operands)
    writes = [writer(target, 'f32', kernel) for target in sums]
    left, right = ([reader(r, 'b32') for r in registers] for registers in (left, right))
    before = [reader(register, 'f32') for register in before]
    places = left_places(columns, 2)

    def run(machine: Machine, mask):
        machine.whole_warps(mask, 'mma')
        a, b = (numbers(machine, reads, kind, WARP) for reads in (left, right))
        a = gather((16, depth), left_places(depth, per_register), a)
        b = gather((depth, 8), right_places(depth, per_register), b)
        product = a @ b
        for write, read, (row, column) in zip(writes, before, places, strict=True):
            part = product[:, row, column].reshape(-1)
            write(machine, machine.full(read(machine)) + part, mask)

    return run


@decoder('wgmma')
def multiply_asynchronously(x: Instruction, kernel: Kernel):
    """Decode wgmma. Its registers and shared memory are in flight until its wait."""
    if 'fence' in x.name:
        return lambda machine, mask: machine.fresh.clear()
    if 'commit_group' in x.name:
        return lambda machine, mask: machine.products.commit(machine.everyone(mask))
    if 'wait_group' in x.name:
        allowed = int(x.operands[0], 0)
        return lambda machine, mask: _finish_products(machine, mask, allowed)
    columns, depth, kind, per_register = shape_and_kind(x)
    sums, left, right, adds, *flags = x.operands
    sums, in_registers = elements(sums), left.startswith('{')
    transposed = [int(flag, 0) for flag in flags[2:]] + [0, 0]
    if in_registers:
        reads = [reader(register, 'b32') for register in elements(left)]
        operands = set(elements(left))
        transposed = [0, *transposed]
    else:
        left, operands = reader(left, 'b64'), set()
    right, adds = reader(right, 'b64'), reader(adds, 'pred')
    before = [reader(register, 'f32') for register in sums]
    writes = [writer(register, 'f32', kernel) for register in sums]
    places = by_warps(left_places(columns, 2))

    def run(machine: Machine, mask):
        machine.whole_warps(mask, 'wgmma')
        if machine.fresh & (operands | set(sums)):
            machine.reports.add('a register of wgmma that no fence followed')
        cells = []
        if in_registers:
            a = numbers(machine, reads, kind, GROUP)
            a = gather((64, depth), by_warps(left_places(depth, per_register)), a)
        else:
            shape = 64, depth, kind, transposed[0]
            a = _described(machine, mask, left, *shape, cells)
        b = _described(machine, mask, right, columns, depth, kind, transposed[1], cells)
        product = a @ np.swapaxes(b, 1, 2)
        keeps = machine.full(adds(machine))
        for write, read, (row, column) in zip(writes, before, places, strict=True):
            kept = np.where(keeps, read(machine), np.float32(0)) if keeps.any() else 0
            write(machine, product[:, row, column].reshape(-1) + kept, mask)
        for some in cells:
            machine.reading[some] = True
        in_flight = set(sums), operands, cells
        machine.products.add(in_flight, machine.everyone(mask).copy())

    return run


def _finish_products(machine: Machine, mask, allowed: int):
    if any([*machine.products.wait(machine.everyone(mask), allowed)]):
        machine.reading[:] = False
        for (_, _, cells), *_ in machine.products.entries:
            for some in cells:
                machine.reading[some] = True


def _described(
    machine: Machine, mask, descriptor, rows: int, depth: int, kind: str,
    transposed: int, cells: list,
) -> np.ndarray:  # fmt: skip
    """Return the operands (groups, rows, depth) that descriptors point at.

    The numbers of a row are contiguous, or if `transposed` those of a column. Rows of
    16 to 128 bytes lie in groups of 8, whose packets of 16 bytes are swizzled.
    """
    words = machine.full(descriptor(machine)).reshape(-1, GROUP)[:, 0]
    active = machine.everyone(mask).reshape(-1, GROUP)[:, 0]
    start, lead, stride = (
        ((words >> np.uint64(shift) & np.uint64(0x3FFF)) << np.uint64(4)).astype(int)
        for shift in (0, 16, 32)
    )
    ways = np.unique(words[active] >> np.uint64(62))
    assert len(ways) == 1
    width, bits = SWIZZLES[int(ways[0])]
    size = 4 if kind == 'tf32' else 2
    outer, inner = np.arange(rows)[:, None], np.arange(depth)[None]
    if transposed:
        outer, inner = inner, outer
    lead, stride = lead[:, None, None], stride[:, None, None]
    block = inner * size // width * lead + outer // 8 * stride
    places = start[:, None, None] + block + outer % 8 * width + inner * size % width
    places = places ^ (places >> 7 & bits) << 4
    groups = np.flatnonzero(active)
    count = rows * depth
    chosen = np.repeat(groups * GROUP, count)  # stands for the threads of its group
    offsets = shared_offsets(machine, chosen, places[groups].reshape(-1), size)
    some = machine.shared.cells(offsets, size)
    if machine.unfenced[some].any():
        machine.reports.add('wgmma reads shared memory that no proxy fence followed')
    cells.append(some.reshape(-1))
    values = np.zeros((len(words), rows, depth), np.float32)
    loaded = load_shared(machine, chosen, offsets, size, 1)[:, 0]
    loaded = decode(machine, loaded.astype(UNSIGNED[8 * size]), kind)
    values[groups] = loaded.reshape(-1, rows, depth)
    return values
