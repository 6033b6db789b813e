"""Break kernels in their PTX, and count how much of it the machine notices.

    python -m tools.gpu.mutants --count 60

A mutant differs from a kernel in one place: a barrier, a mask, a shuffle, an offset,
an operand or a wait. It is noticed by a fault, by a report or by a wrong result. Waits
and fences that the compiler writes without a need are left as they are: products of the
same sums are in order, and a fence follows stores.
Prints a row for each mutant, and how many of each kind were noticed. A mutant whose
launches write the same bits as the kernel's, as with the sign of an added zero, changes
nothing in that call, and is counted apart. Of a mutant's call only those launches run
whose code or bits differ from the kernel's.
"""

import argparse
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from mmattn.cli.terminal import run_main
from tools.benchmark.real_shapes import OPERATORS, Call, filled_calls
from tools.gpu.execute import Executed, Fault, run_ptx
from tools.gpu.memory import GlobalMemory
from tools.gpu.prove import Proof, prove

DTYPES = {80: torch.bfloat16, 90: torch.float32}
REGISTER = r'%\w+'
MISSED, SAME = 'MISSED', 'the same bits'  # verdicts


PRODUCT = re.compile(r'wgmma\.mma_async\S+ (\{[^}]*\})')
STORE_OR_FENCE = re.compile(r'(st\.shared|stmatrix|cp\.async)|fence\.proxy\.async')


def _remove(found: re.Match) -> str:
    return ''


def _remove_before_use(found: re.Match) -> str | None:
    """Remove what ends products, unless the next ones add to the same sums."""
    waited = found.string.rfind('wgmma.wait_group', 0, found.start())
    before = PRODUCT.findall(found.string, max(0, waited), found.start())
    after = PRODUCT.search(found.string, found.end())
    return None if after and after[1] in before else ''


def _remove_after_store(found: re.Match) -> str | None:
    """Remove a fence, unless there is no store since the last one."""
    before = [*STORE_OR_FENCE.finditer(found.string, 0, found.start())]
    return '' if before and before[-1][1] else None


def _swap(found: re.Match) -> str:
    return f'{found[1]}{found[3]}, {found[2]}'


# By kind: a pattern of PTX, and what to put in its place, None for nothing.
KINDS: dict[str, list[tuple[str, Callable[[re.Match], str | None]]]] = {
    'barrier': [(r'bar\.sync\s+0;', _remove)],
    'mask': [
        (r'@(%p\d+)(?= ld\.global)', lambda found: f'@!{found[1]}'),
        (r'@(%p\d+)(?= st\.global)', lambda found: f'@!{found[1]}'),
        (r'@%p\d+ (?=st\.global)', _remove),
        (r'(setp\.)lt(\.s32)', lambda found: f'{found[1]}le{found[2]}'),
    ],
    'shuffle': [
        (
            rf'(shfl\.sync\.bfly\.b32\s+{REGISTER}, {REGISTER}, )(\d+)(?=,)',
            lambda found: f'{found[1]}{int(found[2]) * 2 % 31}',
        ),
        (r'(shfl\.sync\.)idx', lambda found: f'{found[1]}bfly'),
    ],
    'offset': [
        (
            rf'((?:st|ld)\.shared\S*\s[^;\[]*\[\s*{REGISTER})(?:\s*\+\s*(\d+))?',
            lambda found: f'{found[1]}+{int(found[2] or 0) + 16}',
        ),
        (
            rf'((?:ld|st)matrix\S*\s[^;\[]*\[{REGISTER})(?:\+(\d+))?',
            lambda found: f'{found[1]}+{int(found[2] or 0) + 16}',
        ),
        (
            rf'((?:st|ld)\.global\S*\s[^;\[]*\[ {REGISTER} \+ )0',
            lambda found: f'{found[1]}16',
        ),
    ],
    'operand': [
        (rf'(sub\.f32\s+{REGISTER}, )({REGISTER}), ({REGISTER})', _swap),
        (rf'(mma\.sync\S+ \{{[^}}]*\}}, \{{ )({REGISTER}), ({REGISTER})', _swap),
        (rf'(selp\.\w+\s+{REGISTER}, )([^,;]+), ([^,;]+)', _swap),
        (r'add\.f32', lambda found: 'sub.f32'),
        (r'ex2\.approx\.ftz', lambda found: 'lg2.approx.ftz'),
    ],
    'wait': [
        (r'wgmma\.wait_group\S+\s+\d+;', _remove_before_use),
        (r'wgmma\.commit_group\S+;', _remove_before_use),
        (r'wgmma\.fence\S+;', _remove),
        (r'fence\.proxy\.async\S+;', _remove_after_store),
    ],
}


class Mutant(NamedTuple):
    """Describe a mutant: a place in a kernel that a call launches."""

    kind: str
    call: Call
    capability: int
    kernel: str
    ptx: str
    start: int
    end: int
    text: str

    def __str__(self) -> str:
        old = ' '.join(self.ptx[self.start : self.end].split())
        line = self.ptx.count('\n', 0, self.start) + 1
        return (
            f'{self.kernel} sm_{self.capability} line {line}: {old} -> '
            f'{" ".join(self.text.split())}'
        )

    @property
    def broken(self) -> str:
        """Return the changed PTX."""
        return self.ptx[: self.start] + self.text + self.ptx[self.end :]


class Replay:
    """Execute each launch once, and write what it wrote where it comes again.

    A mutant runs in place of its kernel, and its first report is a fault.
    """

    def __init__(self):
        self.mutant: Mutant | None = None
        self.done: dict[tuple, tuple[Executed, list]] = {}

    def __call__(
        self, ptx: str, arguments: Sequence, memory: GlobalMemory, grid, shared_bytes
    ) -> Executed:
        if self.mutant and ptx == self.mutant.ptx:
            launch = self.mutant.broken, arguments, memory, grid, shared_bytes
            executed = run_ptx(*launch)
            for report in executed.reports:
                raise Fault(report)
            return executed
        key = ptx, *arguments, grid, memory.digest()
        if key not in self.done:
            executed = run_ptx(ptx, arguments, memory, grid, shared_bytes)
            tensors = [region.data.copy() for _, region in memory.regions]
            self.done[key] = executed, tensors
        executed, tensors = self.done[key]
        for (_, region), data in zip(memory.regions, tensors, strict=True):
            region.data[:] = data
        return executed


def mutants(
    calls: Sequence[Call], count: int, seed: int, replay: Replay
) -> Iterator[tuple[Mutant, list[bytes]]]:
    """Yield mutants of some calls, in turn of each kind and way.

    The calls are executed first, to know their kernels. Beside a mutant are the bits
    that its call writes without it.
    """
    places = defaultdict(list)
    for call in calls:
        for capability, dtype in DTYPES.items():
            known = {ptx for ptx, *_ in replay.done}
            expected = digests(prove(call, capability, dtype, replay))
            kernels = {key[0]: done.kernel for key, (done, _) in replay.done.items()}
            for ptx, kernel in kernels.items():
                if ptx not in known:
                    for way, *change in changes(ptx):
                        mutant = Mutant(way[0], call, capability, kernel, ptx, *change)
                        places[way].append((mutant, expected))
    generator = random.Random(seed)
    for found in places.values():
        generator.shuffle(found)
    for i in range(count):
        kind = [*KINDS][i % len(KINDS)]
        ways = [found for (name, _), found in places.items() if name == kind and found]
        if ways:
            yield ways[i // len(KINDS) % len(ways)].pop()


def changes(ptx: str) -> Iterator[tuple[tuple[str, int], int, int, str]]:
    """Yield the kind and way of each change of PTX, its start and end, and its text."""
    for kind, ways in KINDS.items():
        for way, (pattern, change) in enumerate(ways):
            for found in re.finditer(pattern, ptx):
                if (text := change(found)) is not None:
                    yield (kind, way), *found.span(), text


def judge(proof: Proof, expected: list[bytes]) -> str:
    """Return how a mutant was noticed, or `MISSED`, or `SAME` for expected bits."""
    if proof.fault:
        return proof.fault
    if proof.error > 1:
        return f'wrong: {proof.error:.2g} tolerances'
    return SAME if digests(proof) == expected else MISSED


def digests(proof: Proof) -> list[bytes]:
    return [launch.digest for launch in proof.launches]


def run(count: int, seed: int = 0, operators: Sequence[str] = OPERATORS) -> list[tuple]:
    """Return mutants, and how each was noticed."""
    calls = [call for name in operators for call in filled_calls(name)]
    rows, replay = [], Replay()
    for mutant, expected in mutants(calls, count, seed, replay):
        replay.mutant = mutant
        dtype = DTYPES[mutant.capability]
        verdict = judge(prove(mutant.call, mutant.capability, dtype, replay), expected)
        rows.append((mutant, verdict))
        print(f'{mutant.kind} | {mutant} | {verdict}', flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--count', type=int, default=60)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = run(args.count, args.seed)
    same = [mutant for mutant, verdict in rows if verdict == SAME]
    rows = [row for row in rows if row[1] != SAME]
    noticed = Counter(mutant.kind for mutant, verdict in rows if verdict != MISSED)
    for kind, total in Counter(mutant.kind for mutant, _ in rows).items():
        print(f'{kind}: {noticed[kind]} of {total}')
    print(f'noticed: {noticed.total()} of {len(rows)}; {len(same)} write the same bits')
    return 0


if __name__ == '__main__':
    run_main(main)
