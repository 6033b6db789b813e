"""Products of tensor cores, and the loads and stores of their operands."""

import re

import numpy as np

from .formats import type_of
from .machine import Machine
from .memory import TRUNCATED, WARP, spans
from .ptx import Instruction, elements

GROUP = 4 * WARP  # threads of a wgmma
LANE = np.arange(WARP)
SWIZZLES = {0: (16, 0), 1: (128, 7), 2: (64, 3), 3: (32, 1)}  # bytes of a row, bits


def rows_of_tiles(m: Machine, x: Instruction, address: str, tiles: int) -> tuple:
    """Return where the two 16-bit numbers of each thread in each tile of 8 x 8 lie.

    Threads 8 * i to 8 * i + 7 of a warp point at the rows of tile i. Addresses and
    threads have the shape (warps * 32 * tiles * 2).
    """
    m.whole(WARP, 'a matrix access')
    rows = m.address(address).reshape(-1, WARP)[:, : 8 * tiles]
    if (rows % 16).any():
        raise m.reports.fault('misaligned row of a matrix')
    row, column = LANE[:, None] // 4, 2 * (LANE[:, None] % 4) + [0, 1]
    if 'trans' in x.name:
        row, column = column, row
    tile = np.arange(tiles)[:, None]
    addresses = rows[:, 8 * tile + row[:, None]] + 2 * column[:, None]
    return addresses.reshape(-1), m.active.repeat(2 * tiles)


def load_matrix(m: Machine, x: Instruction):
    targets = elements(x.operands[0])
    addresses, threads = rows_of_tiles(m, x, x.operands[1], len(targets))
    halves = m.load('shared', addresses, 2, threads=threads)
    registers = halves.reshape(-1, len(targets), 2).view(np.uint32)
    for i, target in enumerate(targets):
        m.write(target, 'b32', registers[:, i, 0])


def store_matrix(m: Machine, x: Instruction):
    registers = [m.read(source, 'b32') for source in elements(x.operands[1])]
    addresses, threads = rows_of_tiles(m, x, x.operands[0], len(registers))
    halves = np.stack(registers, 1).view(np.uint16).reshape(-1, 1)
    m.store('shared', addresses, halves, threads)


def decode(m: Machine, bits: np.ndarray, kind: str) -> np.ndarray:
    """Return the numbers of operands, and report bits that TF32 has no place for."""
    if kind == 'tf32' and (bits & np.uint32(0x1FFF)).any():
        m.reports.add(TRUNCATED)
    return type_of(kind).decode(bits)


def fragment(count: int, packed: int, tiles: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns (count, 32) of the numbers that a warp holds.

    Args:
        count: numbers of a thread.
        packed: numbers of a register.
        tiles: of 8 rows, 2 for the left operand and the sums.
    """
    number = np.arange(count)[:, None]
    row = LANE // 4 + 8 * (number // packed % tiles)
    first = number // (packed * tiles) * 4 * packed
    return row, first + packed * (LANE % 4) + number % packed


def gather(m: Machine, operand: str, kind: str, tiles: int) -> np.ndarray:
    """Return matrices (warps, 8 * tiles, depth) of registers in braces."""
    registers = np.stack([m.read(r, 'b32') for r in elements(operand)], -1)
    bits = registers if kind == 'tf32' else registers.view(np.uint16)
    count, packed = bits.shape[1], 1 if kind == 'tf32' else 2
    values = decode(m, bits, kind).reshape(-1, WARP, count)
    matrix = np.zeros((len(values), 8 * tiles, 4 * count // tiles), np.float32)
    row, column = fragment(count, packed, tiles)
    matrix[:, row, column] = values.swapaxes(1, 2)
    return matrix


def add_product(m: Machine, targets, before: list, product: np.ndarray):
    """Write products (warps, 16, columns) and what is added to them."""
    row, column = fragment(len(targets), 2, 2)
    parts = product[:, row, column]
    for i, target in enumerate(targets):
        m.write(target, 'f32', before[i] + parts[:, i].reshape(-1))


def shape_and_kind(x: Instruction) -> tuple[int, int, str]:
    """Return the columns, the depth and the type of the operands."""
    columns, depth = re.search(r'\.m\d+n(\d+)k(\d+)\.', '.'.join(x.name)).groups()
    kind = next(part for part in reversed(x.name) if part in ('tf32', 'bf16', 'f16'))
    return int(columns), int(depth), kind


def multiply(m: Machine, x: Instruction):
    m.whole(WARP, 'mma')
    _, _, kind = shape_and_kind(x)
    sums, left, right, before = x.operands
    product = gather(m, left, kind, 2) @ gather(m, right, kind, 1).swapaxes(1, 2)
    before = [m.read(register, 'f32') for register in elements(before)]
    add_product(m, elements(sums), before, product)


def multiply_asynchronously(m: Machine, x: Instruction):
    """Execute wgmma. Its registers and shared memory are in flight until its wait."""
    if 'fence' in x.name:
        m.fresh.clear()
    elif 'commit_group' in x.name:
        m.products.groups[m.active] += 1
    elif 'wait_group' in x.name:
        if m.products.wait(m.active, int(x.operands[0], 0)):
            m.shared.reading[:] = False
            for (_, _, cells), *_ in m.products.entries:
                m.shared.reading[cells] = True
    else:
        start_products(m, x)


def start_products(m: Machine, x: Instruction):
    m.whole(GROUP, 'wgmma')
    columns, depth, kind = shape_and_kind(x)
    sums, left, right, adds, *flags = x.operands
    transposed = [int(flag, 0) for flag in flags[2:]] + [0, 0]
    sums, operands, cells = elements(sums), set(), []
    if left.startswith('{'):
        operands = set(elements(left))
        a = gather(m, left, kind, 2).reshape(-1, 64, depth)
        transposed.insert(0, 0)
    else:
        a = load_described(m, left, 64, depth, kind, transposed[0], cells)
    if m.fresh & (operands | set(sums)):
        m.reports.add('a register of wgmma that no fence followed')
    b = load_described(m, right, columns, depth, kind, transposed[1], cells)
    keeps = m.read(adds, 'pred')
    before = [
        np.where(keeps, m.read(r, 'f32'), np.float32(0)) if keeps.any() else 0
        for r in sums
    ]
    product = a @ b.swapaxes(1, 2)
    add_product(m, sums, before, product.reshape(-1, 16, columns))
    cells = np.concatenate(cells)
    m.shared.reading[cells] = True
    m.products.add((set(sums), operands, cells), m.active)


def load_described(
    m: Machine, descriptor: str, rows: int, depth: int, kind: str, transposed: int,
    cells: list,
) -> np.ndarray:  # fmt: skip
    """Return the operands (groups, rows, depth) that descriptors point at.

    The numbers of a row are contiguous, or if `transposed` those of a column. Rows of
    16 to 128 bytes lie in groups of 8, whose packets of 16 bytes are swizzled.
    """
    words = m.read(descriptor, 'b64')[::GROUP, None, None]
    start, lead, stride = (
        ((words >> np.uint64(shift) & np.uint64(0x3FFF)) << np.uint64(4)).astype(int)
        for shift in (0, 16, 32)
    )
    (way,) = np.unique(words >> np.uint64(62))
    width, bits = SWIZZLES[int(way)]
    size = type_of(kind).bits // 8
    outer, inner = np.arange(rows)[:, None], np.arange(depth)[None]
    if transposed:
        outer, inner = inner, outer
    block = inner * size // width * lead + outer // 8 * stride
    places = start + block + outer % 8 * width + inner * size % width
    places = (places ^ (places >> 7 & bits) << 4).reshape(-1)
    threads = m.active[::GROUP].repeat(rows * depth)  # stand for those of their groups
    for shared, _, offsets, _ in m.parts('shared', places, size, threads):
        cells.append(spans(offsets, size, shared.grain).reshape(-1))
    if m.shared.unfenced[cells[-1]].any():
        m.reports.add('wgmma reads shared memory that no proxy fence followed')
    values = decode(m, m.load('shared', places, size, threads=threads), kind)
    return values.reshape(-1, rows, depth)
