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
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from mmattn.cli.terminal import run_main
from tools.benchmark.real_shapes import OPERATORS, Call, filled_calls
from tools.gpu.execute import Executed, run_ptx
from tools.gpu.memory import Fault, GlobalMemory
from tools.gpu.prove import Proof, prove

DTYPES = {80: torch.bfloat16, 90: torch.float32}
REGISTER = r'%\w+'
MISSED, SAME = 'MISSED', 'the same bits'  # verdicts

PRODUCT = re.compile(r'wgmma\.mma_async\S+ (\{[^}]*\})')
STORE_OR_FENCE = re.compile(r'(st\.shared|stmatrix|cp\.async)|fence\.proxy\.async')


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


def _move(found: re.Match) -> str:
    return f'{found[1]}+{int(found[2] or 0) + 16}'


# By kind: a pattern of PTX, and what to put in its place, as a template or a function,
# which returns None to leave a place as it is.
KINDS: dict[str, list[tuple[str, str | Callable[[re.Match], str | None]]]] = {
    'barrier': [(r'bar\.sync\s+0;', '')],
    'mask': [
        (r'@(%p\d+)(?= ld\.global)', r'@!\1'),
        (r'@(%p\d+)(?= st\.global)', r'@!\1'),
        (r'@%p\d+ (?=st\.global)', ''),
        (r'(setp\.)lt(\.s32)', r'\1le\2'),
    ],
    'shuffle': [
        (
            rf'(shfl\.sync\.bfly\.b32\s+{REGISTER}, {REGISTER}, )(\d+)(?=,)',
            lambda found: f'{found[1]}{int(found[2]) * 2 % 31}',
        ),
        (r'(shfl\.sync\.)idx', r'\1bfly'),
    ],
    'offset': [
        (rf'((?:st|ld)\.shared\S*\s[^;\[]*\[\s*{REGISTER})(?:\s*\+\s*(\d+))?', _move),
        (rf'((?:ld|st)matrix\S*\s[^;\[]*\[{REGISTER})(?:\+(\d+))?', _move),
        (rf'((?:st|ld)\.global\S*\s[^;\[]*\[ {REGISTER} \+ )0', r'\g<1>16'),
    ],
    'operand': [
        (rf'(sub\.f32\s+{REGISTER}, )({REGISTER}), ({REGISTER})', r'\1\3, \2'),
        (rf'(mma\.sync\S+ \{{[^}}]*\}}, \{{ )({REGISTER}), ({REGISTER})', r'\1\3, \2'),
        (rf'(selp\.\w+\s+{REGISTER}, )([^,;]+), ([^,;]+)', r'\1\3, \2'),
        (r'add\.f32', 'sub.f32'),
        (r'ex2\.approx\.ftz', 'lg2.approx.ftz'),
    ],
    'wait': [
        (r'wgmma\.wait_group\S+\s+\d+;', _remove_before_use),
        (r'wgmma\.commit_group\S+;', _remove_before_use),
        (r'wgmma\.fence\S+;', ''),
        (r'fence\.proxy\.async\S+;', _remove_after_store),
    ],
}


class Mutant(NamedTuple):
    """Describe a mutant: a call, and the place that is changed in a kernel's PTX.

    `expected` are the digests of the call's launches without the change.
    """

    kind: str
    call: Call
    capability: int
    kernel: str
    ptx: str
    place: slice
    text: str
    expected: list[bytes]

    def __str__(self) -> str:
        line = self.ptx.count('\n', 0, self.place.start) + 1
        old, new = (' '.join(x.split()) for x in (self.ptx[self.place], self.text))
        return f'{self.kernel} sm_{self.capability} line {line}: {old} -> {new}'

    @property
    def broken(self) -> str:
        """Return the changed PTX."""
        return self.ptx[: self.place.start] + self.text + self.ptx[self.place.stop :]


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
            ptx = self.mutant.broken
            executed = run_ptx(ptx, arguments, memory, grid, shared_bytes)
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


def changes(ptx: str) -> Iterator[tuple[tuple[str, int], slice, str]]:
    """Yield the kind and way of each change of PTX, its place, and its text."""
    for kind, ways in KINDS.items():
        for way, (pattern, change) in enumerate(ways):
            for found in re.finditer(pattern, ptx):
                text = (
                    found.expand(change) if isinstance(change, str) else change(found)
                )
                if text is not None:
                    yield (kind, way), slice(*found.span()), text


def mutants(
    calls: Sequence[Call], count: int, seed: int, replay: Replay
) -> Iterator[Mutant]:
    """Yield mutants of some calls, in turn of each kind and way.

    The calls are executed first, to know their kernels.
    """
    places, known = defaultdict(list), set()
    for call, (capability, dtype) in itertools.product(calls, DTYPES.items()):
        expected = digests(prove(call, capability, dtype, replay))
        kernels = {key[0]: done.kernel for key, (done, _) in replay.done.items()}
        for ptx in (x for x in kernels if x not in known):
            for way, place, text in changes(ptx):
                change = kernels[ptx], ptx, place, text, expected
                places[way].append(Mutant(way[0], call, capability, *change))
        known.update(kernels)
    generator = random.Random(seed)
    for found in places.values():
        generator.shuffle(found)
    for i in range(count):
        kind = [*KINDS][i % len(KINDS)]
        ways = [found for (name, _), found in places.items() if name == kind and found]
        if ways:
            yield ways[i // len(KINDS) % len(ways)].pop()


def judge(proof: Proof, expected: list[bytes]) -> str:
    """Return how a mutant was noticed, or `MISSED`, or `SAME` for expected bits."""
    if proof.fault:
        return proof.fault
    if proof.error > 1:
        return f'wrong: {proof.error:.2g} tolerances'
    return SAME if digests(proof) == expected else MISSED


def digests(proof: Proof) -> list[bytes]:
    return [launch.digest for launch in proof.launches]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--count', type=int, default=60)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    calls = [call for name in OPERATORS for call in filled_calls(name)]
    noticed, totals, same, replay = Counter(), Counter(), 0, Replay()
    for mutant in mutants(calls, args.count, args.seed, replay):
        replay.mutant = mutant
        proof = prove(mutant.call, mutant.capability, DTYPES[mutant.capability], replay)
        verdict = judge(proof, mutant.expected)
        print(f'{mutant.kind} | {mutant} | {verdict}', flush=True)
        same += verdict == SAME
        totals[mutant.kind] += verdict != SAME
        noticed[mutant.kind] += verdict not in (SAME, MISSED)
    for kind, total in totals.items():
        print(f'{kind}: {noticed[kind]} of {total}')
    print(f'noticed: {noticed.total()} of {totals.total()}; {same} write the same bits')
    return 0


if __name__ == '__main__':
    run_main(main)
