"""Search for faster tiles: halve and double each size of the launchers' tiles.

    python -m tools.benchmark.tiles masked_attention

times both passes of a few real calls in bfloat16, as `mmattn tune` does for a backbone,
and prints the entries to put into the launchers' tables. `TRITON_INTERPRET=1` with
`--device cpu --quick` tries it out.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import torch

from mmattn.cli.terminal import run_main
from mmattn.ops.triton.launch import TILE_TABLES
from mmattn.ops.triton.tune import tune
from tools.benchmark import measure
from tools.benchmark.real_shapes import OPERATORS, Call, real_calls, small_calls

NUM_CALLS = 3  # real calls of an operator


def seconds(call: Callable) -> float:
    return measure.interleave({'': call}, rounds=3, seconds=0.02)[''].median


def search(call: Call, device: str) -> Iterator[dict]:
    """Yield a row of each tile that is faster by time."""
    tensors = call.make_tensors(dtype=torch.bfloat16, device=device)
    leaves = [x if x is None else x.detach().requires_grad_() for x in tensors]

    def step():
        call.run_on('triton')(*leaves).sum().backward()

    for x in tune(step, seconds):
        row = dict(table=x.table.name, key=str(x.key), before=str(x.before))
        gain = measure.rounded(x.gain, 3)
        yield row | dict(faster=str(x.sizes), gain=gain, call=str(call))


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, device='cuda')
    parser.add_argument('operators', nargs='*', metavar='OPERATOR', help='default: all')
    args = measure.parse(parser, argv)
    with_tiles = {name.partition('.')[0] for name in TILE_TABLES}
    calls = [
        call
        for name in args.operators or [x for x in OPERATORS if x in with_tiles]
        for call in (small_calls if args.quick else real_calls)(name)[:NUM_CALLS]
    ]
    found = (row for call in calls for row in search(call, args.device))
    measure.report(islice(found, 1 if args.quick else None), args, title='Tiles')
    return 0


if __name__ == '__main__':
    run_main(main)
