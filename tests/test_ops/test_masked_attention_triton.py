"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from masked_cases import NAMES, setup
from operator_checks import (
    check_call,
    check_empty,
    check_operator,
    check_repeatable,
    every_real_call,
)
from triton_devices import (
    each_of,
    every_device,
    every_dtype,
    opcheck,
    outer_run,
    run_under_interpreter,
    seldom,
    seldom_interpreted,
)

from mmattn.ops import masked_attention
from mmattn.ops.masked_attention import neighborhood_mask, triton_impl
from tools.benchmark.tolerances import TOLERANCES, assert_close, run_with_grads

pytest.importorskip('triton')

HARD = {
    'one token': dict(grid=(1, 1), num_special=0, B=1, M=1, D=3),
    'one token and a special one': dict(grid=(1, 1), B=1, M=1),
    'grid 7x5, batch 2, heads 2': dict(grid=(7, 5), num_special=0, M=2, bias=True),
    'grid 9x10 in four tiles': dict(grid=(9, 10), num_special=0, B=1, M=1),
    'grid 3x17, two special tokens': dict(
        grid=(3, 17), num_special=2, B=1, M=1, bias=True
    ),
    'row of 9, R 5': dict(grid=(1, 9), num_special=1, kernel_size=5, B=1, M=1),
    'R 7, some see all': dict(
        grid=(5, 4), num_special=1, kernel_size=7, B=1, M=1, bias=True
    ),
    'map smaller than R': dict(
        grid=(2, 3), num_special=2, kernel_size=7, B=1, M=1, D=4
    ),
    'R 1': dict(grid=(3, 3), kernel_size=1, B=1, M=1, D=4, bias=True),
    'width 20': dict(grid=(3, 5), B=1, M=1, D=20),
    'width 96': dict(grid=(2, 9), num_special=1, B=1, M=1, D=96),
    'only special tokens': dict(grid=(0, 4), num_special=3, B=1, M=1, D=4),
}
SOFT = {
    'one token': dict(grid=(1, 1), num_special=0, B=1, M=1, D=3),
    'grid 7x5, batch 2, heads 3': dict(grid=(7, 5)),
    'grid 3x17, two special tokens': dict(grid=(3, 17), num_special=2, B=1, M=1),
    'grid 14x14, R 5': dict(grid=(14, 14), kernel_size=5, B=1, M=2, D=16),
    'row of 150, blocks without neighbors': dict(
        grid=(1, 150), num_special=0, B=1, M=1
    ),
    'map smaller than R': dict(grid=(2, 3), num_special=2, kernel_size=7, B=1, M=1),
    'width 40': dict(grid=(3, 5), B=1, M=1, D=40),
    'width 96': dict(grid=(4, 9), num_special=1, B=1, M=1, D=96),
}
SMALL = dict(grid=(4, 5), B=1, M=1, D=4)

every_kind = pytest.mark.parametrize(
    'kind', [dict(bias=True), dict(alpha=True)], ids=['hard', 'soft']
)


def scores_of(q, k):
    return torch.einsum('bimd,bjmd->bmij', q, k) * q.shape[3] ** -0.5


@outer_run
def test_under_interpreter(cases):
    run_under_interpreter(__file__, cases)


@every_device
@pytest.mark.parametrize(
    'shape_and_fill',
    each_of(
        {
            name: (shape, ('zero', 'neg_inf')[i % 2])
            for i, (name, shape) in enumerate(HARD.items())
        },
        'map smaller than R',
        'width 20',
    ),
)
def test_hard_masks_against_reference(shape_and_fill, device):
    shape, mask_fill = shape_and_fill
    triton, inputs = setup('triton', **shape, device=device, mask_fill=mask_fill)
    check_operator(triton, inputs)


@every_device
@pytest.mark.parametrize('shape', each_of(SOFT, 'grid 14x14, R 5'))
def test_soft_masks_against_reference(shape, device):
    triton, inputs = setup('triton', **shape, alpha=True, device=device)
    check_operator(triton, inputs)


@every_device
@pytest.mark.parametrize('value', [0.0, 1.0])
def test_alpha_at_its_ends(value, device):
    """0 is the hard mask, 1 attention to all."""
    shape = dict(SMALL, grid=(2, 3))
    triton, (*qkv, _, alpha) = setup('triton', **shape, alpha=True, device=device)
    soft = triton(*qkv, None, torch.full_like(alpha, value))
    hard = setup('triton', **shape, kernel_size=3 if value == 0 else 5)[0]
    for backend in ('reference', 'triton'):
        expected = hard(*qkv, None, None, backend=backend)
        assert_close(f'out of {backend}', expected, soft)


@every_device
@pytest.mark.parametrize(
    'kind, dtype',
    [
        pytest.param(dict(bias=True), torch.float16, id='hard, float16'),
        seldom(dict(bias=True), torch.bfloat16, id='hard, bfloat16'),
        seldom(dict(alpha=True), torch.float16, id='soft, float16'),
        pytest.param(dict(alpha=True), torch.bfloat16, id='soft, bfloat16'),
    ],
)
def test_half_precision(kind, dtype, device):
    triton, inputs = setup('triton', **SMALL, **kind, dtype=dtype, device=device)
    check_operator(triton, inputs)


@every_device
@every_kind
def test_half_precision_parameters_and_requires_grad_subset(kind, device):
    triton, inputs = setup(
        'triton', **SMALL, **kind, dtype=torch.bfloat16, device=device
    )
    inputs = [None if x is None else x.bfloat16() for x in inputs]
    wanted = [name in ('k', 'bias', 'alpha') for name in NAMES]
    check_operator(triton, inputs, wanted)


@every_device
@pytest.mark.parametrize('programs', [1, seldom(1000)])
def test_split_of_sums_over_tokens(monkeypatch, programs, device):
    """All of a special token's row in one program, and in one for each block."""
    monkeypatch.setattr(triton_impl, 'TARGET_PROGRAMS', programs)
    shape = dict(grid=(8, 17), num_special=1, B=1, M=1, D=3)
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs)


@every_device
@every_kind
def test_expanded_and_permuted_inputs(kind, device):
    shape = dict(SMALL, B=2)
    triton, (q, k, v, bias, alpha) = setup('triton', **shape, **kind, device=device)
    inputs = [
        q[:1].expand(2, -1, -1, -1),
        k.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),  # D is not last
        v.flip(1),
        None if bias is None else bias.mT.contiguous().mT,
        None if alpha is None else torch.stack([alpha, alpha], 1)[:, 0],
    ]
    check_operator(triton, inputs)


@every_device
def test_mixed_heads(device):
    """Views of some heads of packed q, k and v."""
    shape = dict(grid=(3, 4), num_special=1, B=1, M=3, D=4)
    _, (q, k, v, bias, _) = setup(None, **shape, bias=True, device=device)

    def mixed(q, k, v, bias, backend='triton'):
        return masked_attention(
            q, k, v, (3, 4), num_special=1, bias=bias, masked_heads=(0, 2),
            backend=backend,
        )  # fmt: skip

    check_operator(mixed, [q, k, v, bias[:2]])


@every_device
@every_kind
def test_batch_of_zero(kind, device):
    triton, inputs = setup('triton', **dict(SMALL, B=0), **kind, device=device)
    check_empty(triton, inputs)


@every_device
@pytest.mark.parametrize(
    'level, fill',
    [
        ('near 137', 'zero'),
        seldom('near 137', 'neg_inf'),
        ('near 137', 'soft'),
        ('all at -249', 'zero'),
        ('all at -249', 'neg_inf'),
        ('all at -249', 'soft'),
        seldom('all near 0', 'zero'),
        seldom('all near 0', 'neg_inf'),
        ('all near 0', 'soft'),
    ],
)
def test_scores_out_of_the_range_of_exp(level, fill, device):
    """Errors are at most twice those of the definition in float32; of gradients, also
    the rounding of the log-sum-exp, which is as large as the scores."""
    shape = dict(SMALL, grid=(5, 6), num_special=1)
    shape['mask_fill'] = 'zero' if fill == 'soft' else fill
    triton, (q, k, v, _, alpha) = setup(
        'triton', **shape, alpha=fill == 'soft', device=device
    )
    if level == 'near 137':
        q = q * (137 / scores_of(q, k).abs().amax())
    elif level == 'all at -249':
        q, k = torch.ones_like(q) * 249**0.5, -torch.ones_like(k) * 249**0.5 / 2
    else:
        q = q * 1e-4
    reference = functools.partial(triton, backend='reference')
    inputs = [q, k, v, None, alpha]
    floor = TOLERANCES[torch.float32].absolute
    rounding = torch.finfo(torch.float32).eps * scores_of(q, k).abs().amax()
    out, grads = run_with_grads(triton, inputs)
    dense, dense_grads = run_with_grads(reference, inputs)
    exact, exact_grads = run_with_grads(reference, inputs, dtype=torch.float64)
    for name, e, d, a in zip(
        ('out', *NAMES),
        (exact, *exact_grads),
        (dense, *dense_grads),
        (out, *grads),
        strict=True,
    ):
        if e is not None:
            allowed = 2 * (d - e).abs().amax() + floor * (1 + e.abs().amax())
            if name != 'out':
                allowed += rounding * e.abs().amax()
            assert (a - e).abs().amax() <= allowed, name


@every_device
@pytest.mark.parametrize('where', ['q', 'k', seldom('v')])
def test_nan_reaches_neighbors_only(where, device):
    """Nothing outside a mask that is closed reads or writes the token."""
    shape = dict(grid=(7, 6), num_special=0, mask_fill='neg_inf', B=1, M=1, D=3)
    triton, inputs = setup('triton', **shape, device=device)
    clean, clean_grads = run_with_grads(triton, inputs)
    token, index = 8, NAMES.index(where)
    inputs[index] = inputs[index].clone()
    inputs[index][0, token] = float('nan')
    out, grads = run_with_grads(triton, inputs)

    near = neighborhood_mask(shape['grid'], 3, device=device)[token]
    far = ~neighborhood_mask(shape['grid'], 5, device=device)[token]
    if where == 'q':
        near = torch.arange(len(near), device=device) == token
    assert out[0, near].isnan().all()
    assert torch.equal(out[0, ~near], clean[0, ~near])
    for a, c in zip(grads[:3], clean_grads[:3], strict=True):
        assert torch.equal(a[0, far], c[0, far])


@every_device
@pytest.mark.parametrize(
    'where, kind',
    [
        seldom('q', {}, id='q, hard'),
        pytest.param('k', {}, id='k, hard'),
        pytest.param('q', dict(alpha=True), id='q, soft'),
        pytest.param('k', dict(alpha=True), id='k, soft'),
    ],
)
def test_nan_reaches_rows_that_see_it_only(where, kind, device):
    """A NaN in v is left out: with the paper's mask v is in a sum over all tokens."""
    shape = dict(grid=(4, 5), num_special=0, B=2, M=1, D=3)
    triton, inputs = setup('triton', **shape, **kind, device=device)
    clean, clean_grads = run_with_grads(triton, inputs)
    token, index = 6, NAMES.index(where)
    inputs[index] = inputs[index].clone()
    inputs[index][0, token] = float('nan')
    out, grads = run_with_grads(triton, inputs)

    hit = neighborhood_mask(shape['grid'], 3, device=device)[token]
    if where == 'q':
        hit = torch.arange(len(hit), device=device) == token
    elif kind:
        hit = torch.ones_like(hit)
    assert out[0, hit].isnan().all()
    assert torch.equal(out[0, ~hit], clean[0, ~hit])
    for a, c in zip((out, *grads[:3]), (clean, *clean_grads[:3]), strict=True):
        assert torch.equal(a[1], c[1])


@seldom_interpreted
@every_device
@every_kind
def test_two_runs_are_equal(kind, device):
    triton, inputs = setup('triton', **SMALL, **kind, device=device)
    check_repeatable(triton, inputs)


@every_device
@every_kind
def test_opcheck(kind, device):
    shape = dict(grid=(2, 3), B=1, M=1, D=2)
    triton, inputs = setup('triton', **shape, **kind, device=device)
    inputs = [None if x is None else x.detach().requires_grad_() for x in inputs]
    opcheck(
        torch.ops.mmattn.masked_attention,
        (*inputs, [2, 3], 3, 1, 'zero', 'triton'),
        device,
    )


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')


@pytest.mark.gpu
@on_gpu
@every_dtype
@every_real_call('masked_attention')
def test_real_shapes(call, dtype):
    check_call(call, 'triton', dtype, 'cuda')


@pytest.mark.gpu
@on_gpu
@every_kind
def test_memory_is_linear_in_tokens(kind):
    """At 200 x 334 patches a map of scores alone would be 17 GB."""
    shape = dict(grid=(200, 334), num_special=0, B=1, M=1, D=32)
    triton, inputs = setup('triton', **shape, **kind, device='cuda')
    inputs = [None if x is None else x.detach().requires_grad_() for x in inputs]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = triton(*inputs)
    out.sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 16 * out.nbytes


@pytest.mark.gpu
@on_gpu
@every_kind
def test_gpu_takes_triton_and_compiles(kind):
    triton, inputs = setup('triton', **SMALL, **kind, device='cuda')
    chosen = functools.partial(triton, backend=None)
    compiled = torch.compile(chosen, fullgraph=True)
    assert torch.equal(compiled(*inputs), triton(*inputs))
