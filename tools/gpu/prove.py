"""Execute each kernel of Triton as compiled, and compare it with its definition.

    python -m tools.gpu.prove --capabilities 80 90 --dtypes bfloat16 float32
    python -m tools.gpu.prove landmark_attention --odd > proof.csv

Requires no GPU. `error` is the largest error of the output or of a gradient in units of
the tests' tolerance, so up to 1 is right. `reports` counts races, reads before their
wait and reads of what nothing wrote; a fault, such as an access out of bounds, ends a
call. The other columns count what the warps of both passes executed. The exit status is
1 if anything is wrong.
"""

import csv
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mmattn.cli.terminal import command_parser, run_main
from tools.benchmark.real_shapes import OPERATORS, Call, odd_calls, small_calls
from tools.gpu.execute import Executed, Run, executed, run_ptx
from tools.gpu.memory import Fault

DTYPES = ('bfloat16', 'float32', 'float16')
TENSOR_CORES = 'mma', 'wgmma'


class Proof(NamedTuple):
    """Hold what a call did: the largest error, what was wrong, and its launches.

    The error is in units of the tests' tolerance, so up to 1 is right.
    """

    error: float
    reports: Counter
    fault: str
    launches: Sequence[Executed]

    @property
    def passed(self) -> bool:
        return self.error <= 1 and not self.reports and not self.fault


def prove(
    call: Call, capability: int, dtype: torch.dtype, run_ptx: Run = run_ptx
) -> Proof:
    """Execute both passes of a call as compiled for a capability.

    Args:
        call, capability, dtype: what to execute.
        run_ptx: what executes a launch.
    """
    fault, error = '', float('inf')
    with executed(capability, run_ptx) as launches:
        try:
            error = max(call.errors_on('triton', dtype).values())
        except Fault as found:
            fault = str(found)
    reports = sum((x.reports for x in launches), Counter())
    return Proof(error, reports, fault, launches)


def row_of(call: Call, capability: int, dtype: str) -> dict:
    """Return the columns of a call."""
    start = time.process_time()
    proof = prove(call, capability, getattr(torch, dtype))
    counts = sum((x.counts for x in proof.launches), Counter())
    return {
        'operator': call.operator, 'call': str(call), 'capability': capability,
        'dtype': dtype, 'launches': len(proof.launches), 'error': f'{proof.error:.2g}',
        'reports': proof.reports.total(), 'fault': proof.fault,
        'passed': proof.passed, 'instructions': counts.total(),
        'tensor cores': sum(counts[name] for name in TENSOR_CORES),
        'seconds': f'{time.process_time() - start:.1f}',
        'what': '; '.join(proof.reports),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument('operators', nargs='*', metavar='OPERATOR', help='default: all')
    parser.add_argument('--capabilities', nargs='+', type=int, default=[80, 90])
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=DTYPES[:2])
    parser.add_argument('--odd', action='store_true', help='odd shapes, not small ones')
    args = parser.parse_args(argv)
    if unknown := {*args.operators} - {*OPERATORS}:
        parser.error(f'OPERATOR must be of {OPERATORS}, got {sorted(unknown)}')
    torch.set_num_threads(1)
    table, passed = None, True
    for operator in args.operators or OPERATORS:
        for call in (odd_calls if args.odd else small_calls)(operator):
            for capability in args.capabilities:
                for dtype in args.dtypes:
                    row = row_of(call, capability, dtype)
                    if table is None:
                        table = csv.DictWriter(sys.stdout, row)
                        table.writeheader()
                    table.writerow(row)
                    sys.stdout.flush()
                    passed = passed and row['passed']
    return int(not passed)


if __name__ == '__main__':
    run_main(main)
