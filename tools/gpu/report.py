"""Count what each Triton kernel costs at the shapes of real models, without a GPU.

    python -m tools.gpu.report --operators landmark_attention --capability 90

`docs/gpu_report.md` says how to read the table. A kernel is compiled ahead of
time, and `tools.gpu.sass` follows a few of its programs through the disassembly. The
rows `total`, `pytorch` and `definition` compare an operator with its reference.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch import are_deterministic_algorithms_enabled as is_deterministic
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmattn.ops.common.operator import Operator
from tools.benchmark import measure
from tools.benchmark.inputs import Draw
from tools.benchmark.real_shapes import OPERATORS, Call, real_calls
from tools.benchmark.tolerances import deterministic
from tools.dev.markdown import markdown
from tools.gpu.compile import Launch, machine_code, record_launches, resources
from tools.gpu.sass import constant_bank, execute

FOLDER = Path('docs/benchmarks')
TRITON = '3.8'  # the version that the stored tables are of
# Warp instructions and bytes a microsecond: 4 a clock on each of 132 and 108 SMs, and
# what copies reach, on H100 SXM and A100 of 80 GB.
ISSUE = {90: 900e3, 80: 600e3}
BANDWIDTH = {90: 3.0e6, 80: 1.8e6}
PROGRAMS = 4  # that are followed, evenly spaced over the grid
FIELDS = (
    'operator', 'shape', 'pass', 'kernel', 'launches', 'programs', 'warps', 'registers',
    'spills', 'shared', 'tensor', 'instructions', 'unknown_branches', 'issue_us',
    'floor_us', 'ratio',
)  # fmt: skip
SUMS = 'tensor', 'instructions', 'issue_us'  # over launches and kernels
# They start no kernel, and their schemas do not say so.
SILENT = {'_unsafe_view', 'empty', 'empty_like', 'empty_strided', 'new_empty'}
SILENT |= {'new_empty_strided', 'device'}


def starts_kernel(function: Callable) -> bool:
    """Return whether an operator of PyTorch starts a kernel on a GPU."""
    return not (function.is_view or function.__name__.partition('.')[0] in SILENT)


class EagerLaunches(TorchDispatchMode):
    """Count operators of PyTorch that start a kernel, and the bytes that they move."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tensors = tensors_in((args, kwargs, out))
        if starts_kernel(function) and any(not x.is_cpu for x in tensors):
            self.counts[function.overloadpacket.__name__] += 1
            self.bytes += num_bytes(tensors)
            if 'scatter_add' in function.__name__ and is_deterministic():
                # A pass of a radix sort reads and writes 64 bits of a place and of a
                # number, and sorts by 8 bits.
                passes = -(-args[0].numel().bit_length() // 8)
                self.bytes += 2 * 16 * args[2].numel() * passes
        return out


def tensors_in(values) -> list[Tensor]:
    """Return the tensors in nested sequences."""
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def num_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes that tensors hold, once where expanded."""
    return sum(
        x.element_size()
        * math.prod(
            size if stride else min(size, 1)
            for size, stride in zip(x.shape, x.stride(), strict=True)
        )
        for x in tensors
    )


def operator_arguments(
    call: Call, dtype: torch.dtype = torch.bfloat16
) -> tuple[Operator, tuple, dict]:
    """Return the operator, tensors on the meta device and settings of a call."""
    found = []

    def note(self, *tensors, backend=None, **settings):
        found.append((self, tensors, settings))
        return self.reference(*tensors, **settings)

    def on_meta(self, *shape):
        return torch.empty(shape, dtype=torch.float64, device='meta')

    with (
        mock.patch.object(Draw, 'exact', on_meta),
        mock.patch.object(Operator, '__call__', note),
    ):
        call.run_on(None)(*call.make_tensors(dtype=dtype, device='meta'))
    return found[0]


def passes(
    call: Call, capability: int
) -> dict[str, tuple[list[Launch], EagerLaunches, int, EagerLaunches]]:
    """Return of either pass: launches of Triton, other launches, the bytes of inputs
    and results, and what the definition does."""
    operator, tensors, settings = operator_arguments(call)
    kernels = operator.backends['triton']
    given = [x for x in tensors if x is not None]

    def forward():
        return kernels.forward(*tensors, **settings)

    with deterministic(call.deterministic):
        triton, others, result = _run(forward, capability)
        out, *saved = (result,) if isinstance(result, Tensor) else result
        if operator.num_saved > len(saved):
            saved = [out, *saved]
        backward = _run(
            lambda: kernels.backward(out, *saved, *tensors, **settings), capability
        )
        leaves = [None if x is None else x.detach().requires_grad_() for x in tensors]
        with EagerLaunches() as definition:
            expected = operator.reference(*leaves, **settings)
        with EagerLaunches() as definition_backward:
            torch.autograd.grad(
                expected,
                [x for x in leaves if x is not None],
                torch.empty_like(expected),
                allow_unused=True,
            )
    least = num_bytes([*given, out])
    return {
        'forward': (triton, others, least, definition),
        'backward': (*backward[:2], least + num_bytes(given), definition_backward),
    }


def _run(function: Callable, capability: int):
    with record_launches(capability) as launches, EagerLaunches() as eager:
        result = function()
    return launches, eager, result


CODE: dict[tuple[str, int], tuple[dict, str]] = {}


def _compiled(launch: Launch, capability: int) -> tuple[dict[str, int], str]:
    """Return the resources and the machine code of a launch."""
    key = repr(launch), capability
    if key not in CODE:
        CODE[key] = resources(launch, capability), machine_code(launch, capability)
    return CODE[key]


def cost(launches: Sequence[Launch], capability: int) -> dict:
    """Return the figures of all launches of a kernel: sums, and the largest sizes."""
    rows = []
    for launch in launches:
        usage, code = _compiled(launch, capability)
        warps = launch.options.get('num_warps', 4)
        words = constant_bank(launch.signature, launch.arguments, warps, capability)
        first = launch.arguments.get('first_programs', 0)  # which do other work
        sums, runs = Counter(), []
        for start, count in ((0, first), (first, launch.programs - first)):
            numbers = sorted({start + i * count // PROGRAMS for i in range(PROGRAMS)})
            some = [execute(code, words, number) for number in numbers if count]
            scale = warps * count / max(1, len(some))
            sums['tensor'] += round(scale * sum(x.tensor for x in some))
            sums['instructions'] += round(scale * sum(x.counts.total() for x in some))
            runs += some
        rows.append(
            dict(
                sums,
                programs=launch.programs,
                warps=warps,
                registers=usage['REG'],
                spills=usage['STACK'] + usage['LOCAL'],
                shared=usage['SHARED'],
                unknown_branches=max(x.unknown for x in runs),
            )
        )
    figures = {
        name: (sum if name in SUMS else max)(row[name] for row in rows)
        for name in rows[0]
    }
    issue = figures['instructions'] / ISSUE[capability]
    return figures | dict(launches=len(launches), issue_us=issue)


def rows_of(call: Call, capability: int) -> list[dict[str, str]]:
    """Return the rows of a call as the tables have them: kernels, total, definition."""
    rows = []
    for name, (launches, others, least, definition) in passes(call, capability).items():
        parts = {
            kernel: cost([x for x in launches if x.kernel == kernel], capability)
            for kernel in sorted({x.kernel for x in launches})
        }
        total = {key: sum(x[key] for x in parts.values()) for key in SUMS}
        floor = least / BANDWIDTH[capability]
        parts['total'] = total | dict(
            launches=len(launches) + others.counts.total(),
            spills=max((x['spills'] for x in parts.values()), default=0),
            floor_us=floor,
            ratio=total['issue_us'] / floor,
        )
        for kernel, eager in (('pytorch', others), ('definition', definition)):
            floor = eager.bytes / BANDWIDTH[capability]
            parts[kernel] = dict(launches=eager.counts.total(), floor_us=floor)
        head = {'operator': call.operator, 'shape': str(call), 'pass': name}
        rows += [head | {'kernel': x} | figures for x, figures in parts.items()]
    return [{field: _text(row.get(field, '')) for field in FIELDS} for row in rows]


def path_of(capability: int) -> Path:
    """Return the file of a capability's table."""
    return FOLDER / f'kernels_sm{capability}.csv'


def _text(value) -> str:
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def main(argv: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('--operators', nargs='+', choices=OPERATORS, default=OPERATORS)
    parser.add_argument('--capability', type=int, choices=sorted(ISSUE), default=90)
    parser.add_argument('--shapes', default='', help='only calls whose name has this')
    parser.add_argument(
        '--write',
        action='store_true',
        help=f'replace the rows of these operators in {FOLDER}/kernels_sm*.csv',
    )
    args = parser.parse_args(argv)
    rows = []
    for operator in args.operators:
        for call in real_calls(operator):
            if args.shapes in str(call):
                rows += rows_of(call, args.capability)
                measure.progress(f'{operator}: {call}')
    if not args.write:
        return print(markdown([FIELDS, *(row.values() for row in rows)]))
    if not metadata.version('triton').startswith(f'{TRITON}.'):
        parser.error(f'the tables are of Triton {TRITON}')
    path = path_of(args.capability)
    calls = [
        (operator, str(call)) for operator in OPERATORS for call in real_calls(operator)
    ]
    done = {(row['operator'], row['shape']) for row in rows}
    rows += [
        row
        for row in (measure.read_csv(path) if path.exists() else [])
        if (row['operator'], row['shape']) in {*calls} - done
    ]
    rows.sort(key=lambda row: calls.index((row['operator'], row['shape'])))
    measure.write_csv(path, rows, {})


if __name__ == '__main__':
    main()
