"""Instructions that move numbers: memory, copies, shuffles and barriers."""

import numpy as np

from .formats import type_of
from .machine import Machine
from .memory import WARP
from .ptx import Instruction, elements


def space_of(x: Instruction) -> str:
    """Return 'global', 'shared' or 'param'."""
    return next(p.split('::')[0] for p in x.name[1:] if p[:2] in ('gl', 'sh', 'pa'))


def load(m: Machine, x: Instruction):
    targets, described = elements(x.operands[0]), type_of(x.type)
    addresses = m.address(x.operands[1])
    bits = m.load(space_of(x), addresses, described.bits // 8, len(targets))
    for target, column in zip(targets, bits.T, strict=True):
        # A signed number is extended to the width of the register.
        kind = f's{m.kernel.width(target)}' if x.type[0] == 's' else x.type
        m.write(target, kind, described.decode(column))


def store(m: Machine, x: Instruction):
    kind = f'b{type_of(x.type).bits}'
    columns = [m.read(source, kind) for source in elements(x.operands[1])]
    m.store(space_of(x), m.address(x.operands[0]), np.stack(columns, 1))


def add_atomically(m: Machine, x: Instruction):
    if 'add' not in x.name or space_of(x) != 'global':
        raise NotImplementedError(str(x))
    *targets, address, sources = x.operands
    values = np.stack([m.read(source, x.type) for source in elements(sources)], 1)
    before = m.store('global', m.address(address), values, atomic=True)
    targets = elements(targets[0]) if targets else []
    for target, column in zip(targets, before.T, strict=False):
        m.write(target, x.type, column)


def copy_asynchronously(m: Machine, x: Instruction):
    """Execute cp.async. Places in shared memory are in flight until their wait."""
    if x.name[:2] != ('cp', 'async') or 'bulk' in x.name:
        raise NotImplementedError(str(x))
    if 'commit_group' in x.name:
        m.copies.groups[m.active] += 1
    elif 'wait_group' in x.name:
        finish_copies(m, int(x.operands[0], 0))
    elif 'wait_all' in x.name:
        finish_copies(m, -1)
    else:
        start_copies(m, *x.operands)


def start_copies(m: Machine, target: str, source: str, size: str, filled: str = ''):
    """Load what `filled` says of `size` bytes of each thread; the others are zeros."""
    filled, size = m.read(filled or size, 'u32'), int(size, 0)
    addresses, words = m.address(source), np.arange(size // 4)
    if (addresses[filled > 0] % size).any():
        raise m.reports.fault(f'misaligned copy of {size} bytes')
    values = np.zeros((m.active.size, words.size), np.uint32)
    thread, word = np.nonzero(4 * words + 4 <= filled[:, None])
    loaded = m.load('global', addresses[thread] + 4 * word, 4, 1, m.active[thread])
    values[thread, word] = loaded[:, 0]
    places = m.address(target)
    for shared, _, offsets, now in m.parts('shared', places, size, m.active):
        shared.start_copy(offsets, size, now)
    m.copies.add((m.active, places, values), m.active)


def finish_copies(m: Machine, allowed: int):
    for (threads, places, values), done in m.copies.wait(m.active, allowed):
        some = np.searchsorted(threads, done)
        size = 4 * values.shape[1]
        for shared, _, offsets, now in m.parts('shared', places[some], size, done):
            shared.finish_copy(offsets, values[some], now)


def barrier(m: Machine, x: Instruction):
    if x.name[:2] == ('bar', 'warp'):
        m.whole(WARP, 'bar.warp.sync')
        m.now['clock'][m.active] += 1
    elif x.operands[0] == '0' and (
        x.name[1] == 'sync' or x.name[1:3] == ('cta', 'sync')
    ):
        m.barrier()
    else:
        raise NotImplementedError(str(x))


def fence(m: Machine, x: Instruction):
    """Let wgmma see what the threads stored to shared memory before."""
    if 'proxy' in x.name:
        writers = m.shared.last['writes']['thread']
        m.shared.unfenced[np.isin(writers, m.now['thread'][m.active])] = False


def nothing(m: Machine, x: Instruction):
    """Programs of a launch run after those of the launch before."""


def shuffle(m: Machine, x: Instruction):
    """Read the register of another thread, which must be active, too."""
    target, *valid_target = x.operands[0].split('|')
    value, other, limits = (m.read(operand, 'b32') for operand in x.operands[1:4])
    lane, other = m.active % WARP, other.astype(np.int64) & 31
    segment, limit = limits.astype(np.int64) >> 8 & 31, limits.astype(np.int64) & 31
    low, high = lane & segment, lane & segment | limit & ~segment
    source = {
        'bfly': lane ^ other, 'idx': low | other & ~segment,
        'up': lane - other, 'down': lane + other,
    }[x.name[2]]  # fmt: skip
    valid = source >= high if x.name[2] == 'up' else source <= high
    source = m.active - lane + np.where(valid, source, lane)
    place = np.searchsorted(m.active, source).clip(max=m.active.size - 1)
    if (m.active[place] != source).any():
        raise m.reports.fault('a shuffle from a thread that is not there')
    m.write(target, 'b32', value[place])
    for register in valid_target:
        m.write(register, 'pred', valid)


REDUCTIONS = {
    'add': np.add, 'min': np.minimum, 'max': np.maximum,
    'and': np.bitwise_and, 'or': np.bitwise_or, 'xor': np.bitwise_xor,
}  # fmt: skip


def reduce_warp(m: Machine, x: Instruction):
    """Execute redux.sync, which gives each member of a warp the same result."""
    m.whole(WARP, 'redux.sync')
    if (m.read(x.operands[2], 'b32') != 2**WARP - 1).any():
        raise NotImplementedError(f'{x} of a part of a warp')
    values = m.read(x.operands[1], x.type).reshape(-1, WARP)
    result = REDUCTIONS[x.name[2]].reduce(values, 1, dtype=values.dtype)
    m.write(x.operands[0], x.type, result.repeat(WARP))
