"""Counted instructions: of a loop of known length, and of the kernels."""

import math
import re
from collections import defaultdict
from importlib.metadata import version
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.ops.common import extension, operator
from mmattn.ops.landmark_attention import triton_impl as landmark
from mmattn.ops.triton import launch as triton_launch
from tools.benchmark.real_shapes import OPERATORS, real_calls
from tools.benchmark.tolerances import deterministic
from tools.dev import kernel_report

COSTS = {  # rows of the table: the backend and the column that counts
    'total': ('triton', 'issue_us'),
    'pytorch': ('triton', 'floor_us'),
    'definition': ('reference', 'floor_us'),
}

triton = pytest.importorskip('triton')
import triton.language as tl  # noqa: E402

from tools.dev import aot, sass  # noqa: E402

QUICK = {  # the name of one shape of each operator
    'deformable_attention': 'grid (7, 7), K 49',
    'landmark_attention': 'B 128, N 196, L 49, M 10, D 32, E None',
    'masked_attention': 'grid (56, 56), kernel_size 3',
    'ms_deform_attn': 'Q 300, B 2, M 8, D 32, P 4, form offsets from points',
    'neighborhood_attention': 'grid (28, 28), K 7',
    'structure_aware_attention': 'grid (14, 14), B 32, M 20, D 16, K 8',
}


@triton.jit
def _loops_kernel(x_ptr, n, splits, BLOCK: tl.constexpr):
    """Loop over this program's share of n, and in it over its number."""
    pid = tl.program_id(0)
    share = tl.cdiv(n, splits)
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(pid % splits * share, tl.minimum((pid % splits + 1) * share, n)):
        for second in range(pid // splits):
            total = tl.exp(total + tl.load(x_ptr + first + second + i))
    tl.store(x_ptr + i, total)


@pytest.mark.parametrize('capability', [80, 90])
def test_rounds_of_loops(capability):
    """Loads show how often loops ran, whose bounds are quotients.

    The compiler unrolls the inner loop, and issues one load that a predicate turns off.
    """
    with aot.record_launches() as launches:
        _loops_kernel[(40,)](
            torch.empty(9, device='meta'), 103, 5, BLOCK=32, num_stages=1
        )
    (launch,) = launches
    code = aot.machine_code(launch, capability)
    words = sass.constant_bank(launch.signature, launch.arguments, 4, capability)
    for program in range(launch.programs):
        split, rounds = program % 5, program // 5
        share = min(21 * (split + 1), 103) - 21 * split
        counts, unknown = sass.execute(code, words, program)
        assert counts['LDG'] == share * (rounds + (rounds > 0)), program
        assert not unknown


@triton.jit
def _data_kernel(count_ptr, x_ptr):
    """Loop as often as data says, within a loop of four."""
    for i in range(4):
        for j in range(tl.load(count_ptr + i)):
            tl.store(x_ptr + j, tl.exp(tl.load(x_ptr + j)))


@pytest.mark.parametrize('capability', [80, 90])
def test_loops_that_data_ends_are_left(capability):
    with aot.record_launches() as launches:
        count = torch.empty(4, device='meta', dtype=torch.int32)
        _data_kernel[(1,)](count, torch.empty(9, device='meta'))
    code = aot.machine_code(launches[0], capability)
    words = sass.constant_bank(
        launches[0].signature, launches[0].arguments, 4, capability
    )
    counts, unknown = sass.execute(code, words, 0)
    assert unknown and 1 <= counts['MUFU'] <= 64


SPILLED_COUNTER = """
        /*0000*/                   MOV R0, RZ ;
        /*0010*/                   STL [R1+0x8], R0 ;
.L_x_0:
        /*0020*/                   LDL.LU R2, [R1+0x8] ;
        /*0030*/                   LDG.E R7, [R4] ;
        /*0040*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0050*/                   STL [R1+0x8], R2 ;
        /*0060*/                   ISETP.NE.AND P0, PT, R2, 0x7, PT ;
        /*0070*/               @P0 BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
"""


def test_a_spilled_counter_is_followed():
    counts, unknown = sass.execute(SPILLED_COUNTER, {}, 0)
    assert counts['LDG'] == 7 and not unknown
    assert counts.total() == 2 + 7 * 6 + 1


@pytest.mark.parametrize('capability', [80, 90])
def test_landmark_kernels_gain_from_the_least_tokens_on(capability):
    """Lines through the costs of an image of 196 and of 4200 tokens cross below."""
    lines = defaultdict(dict)
    for row in kernel_report.read(capability):
        shape = re.fullmatch(r'B (\d+), N (196|4200), L 49, .*, E 20', row['shape'])
        backend, column = COSTS.get(row['kernel'], (None, None))
        if shape and backend and row['operator'] == 'landmark_attention':
            images, tokens = map(int, shape.groups())
            line = lines[backend]
            line[tokens] = line.get(tokens, 0) + float(row[column]) / images
    more = {n: lines['triton'][n] - lines['reference'][n] for n in (196, 4200)}
    crossing = 196 - more[196] * (4200 - 196) / (more[4200] - more[196])
    assert math.ceil(crossing / 49) == landmark.MIN_TOKENS


@pytest.mark.skipif(
    not version('triton').startswith(f'{kernel_report.TRITON}.'),
    reason=f'the counts are of the code that Triton {kernel_report.TRITON} makes',
)
@pytest.mark.parametrize(
    'operator, call, capability',
    [
        pytest.param(
            operator, call, capability,
            id=f'{operator}, {call}, sm_{capability}',
            marks=[]
            if capability == 90 and QUICK.get(operator, '-') in str(call)
            else pytest.mark.slow,
        )
        for operator in OPERATORS
        for call in real_calls(operator)
        for capability in kernel_report.ISSUE
        if kernel_report.path_of(capability).exists()
    ],
)  # fmt: skip
def test_counts_are_those_of_the_table(operator, call, capability):
    """Run `python -m tools.dev.kernel_report --write` after a change of a kernel."""
    rows = {
        (row['pass'], row['kernel']): row
        for row in kernel_report.read(capability)
        if (row['operator'], row['shape']) == (operator, str(call))
    }
    found = kernel_report.rows_of(call, capability)
    assert [(row['pass'], row['kernel']) for row in found] == list(rows)
    for row in found:
        stored = rows[row['pass'], row['kernel']]
        assert row['launches'] == int(stored['launches']), row
        for key in ('instructions', 'tensor', 'registers', 'shared', 'floor_us'):
            expected = float(stored[key] or 0)
            assert row.get(key, 0) == pytest.approx(expected, rel=0.1), (key, row)
        assert row.get('spills', 0) <= float(stored['spills'] or 0), row


def test_views_start_no_kernel():
    """A product of three axes is one `mm` of a view, and `_unsafe_view` of that."""
    with kernel_report.EagerLaunches() as eager:
        x = torch.empty(2, 3, 5, device='meta').mT.mT
        (x @ torch.empty(5, 7, device='meta')).flatten().view(2, 21)
    assert eager.launches == 1
    assert eager.bytes == 4 * (2 * 3 * 5 + 5 * 7 + 2 * 3 * 7)


@pytest.mark.parametrize(
    'name, capability', list(product(OPERATORS, kernel_report.ISSUE)), ids=str
)
def test_the_chosen_backend_counts_least(monkeypatch, name, capability):
    """A call counts its forward and, where it needs gradients, its backward."""
    device = SimpleNamespace(name='GPU', major=capability // 10, minor=0)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda _: device)
    monkeypatch.setattr(triton_launch, 'UNAVAILABLE', None)
    monkeypatch.setattr(triton_launch, 'capability', lambda _: capability)
    monkeypatch.setattr(extension, 'CUDA_UNAVAILABLE', 'not built')
    costs = defaultdict(float)
    for row in kernel_report.read(capability):
        backend, column = COSTS.get(row['kernel'], (None, None))
        if row['operator'] == name and backend:
            costs[row['shape'], row['pass'], backend] += float(row[column])
    for call in real_calls(name):
        _, tensors, _ = kernel_report.operator_arguments(call)
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            deterministic(call.deterministic),
        ):
            fakes = [
                x if x is None else torch.empty(x.shape, dtype=x.dtype, device='cuda')
                for x in tensors
            ]
            for needs_grad in (False, True):
                fakes[0].requires_grad_(needs_grad)
                chosen = operator.OPERATORS[name].choose(*fakes)
                passes = kernel_report.PASSES[: 1 + needs_grad]
                count = {
                    backend: sum(costs[str(call), x, backend] for x in passes)
                    for backend in ('triton', 'reference')
                }
                least = min(count.values())  # 1 % more is the same
                assert count[chosen] <= 1.01 * least, (call, needs_grad, count)
