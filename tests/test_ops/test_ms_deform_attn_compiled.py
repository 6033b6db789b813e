"""Results of the compiled kernels of multi-scale deformable attention.

The extension is built here for the CPU; the CUDA kernels run on a CPU, too, where there
is no GPU.
"""

import compiled_extension
import pytest
import torch
from ms_deform_cases import (
    LEVELS,
    NAMES,
    every_form,
    every_shape,
    setup,
)
from operator_checks import check_operator, every_dtype

from mmattn.ops import extension, fused_ms_deform_attn, ms_deform_attn
from mmattn.ops.ms_deform_attn import cuda_impl
from tools.benchmark.tolerances import assert_close, run_with_grads

pytestmark = [pytest.mark.slow, compiled_extension.needs('c++')]
BACKENDS = ['cpp', 'emulated', pytest.param('cuda', marks=pytest.mark.gpu)]
NARROW = torch.float32, torch.float16, torch.bfloat16

numbers = pytest.mark.parametrize(
    'number', [float('nan'), float('inf'), -float('inf'), 1e30]
)


@pytest.fixture(params=BACKENDS)
def kernels(request, monkeypatch):
    """`setup` for one of the backends."""
    kind, device = request.param, 'cpu'
    if kind == 'cpp':
        compiled_extension.load_extension()
        monkeypatch.setattr(extension, 'UNAVAILABLE', None)
    elif kind == 'emulated':
        compiled_extension.load_emulation()
        monkeypatch.setattr(cuda_impl, 'OPERATORS', torch.ops.mmattn_emulated)
        monkeypatch.setattr(cuda_impl, 'unsupported', lambda *tensors: None)
    elif not torch.cuda.is_available() or extension.CUDA_UNAVAILABLE:
        pytest.skip(extension.CUDA_UNAVAILABLE or 'no CUDA device')
    else:
        device = 'cuda'
    backend = 'cpp' if kind == 'cpp' else 'cuda'

    def set_up(dtype=torch.float32, **settings):
        if backend == 'cuda' and dtype == torch.float64:
            pytest.skip('the CUDA kernels have no float64')
        return setup(backend, dtype=dtype, device=device, **settings)

    set_up.backend = backend
    return set_up


@every_form
@every_shape
def test_shapes(kernels, shape, form):
    check_operator(*kernels(**{**form, **shape}))


@every_form
@every_dtype
@pytest.mark.parametrize('D', [19, 32])
def test_dtypes(kernels, D, dtype, form):
    check_operator(*kernels(dtype=dtype, D=D, Q=7, **form))


@pytest.mark.parametrize('points_dtype', NARROW, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize('dtype', NARROW, ids=lambda d: str(d)[6:])
def test_points_of_another_dtype(kernels, dtype, points_dtype):
    """Offsets and logits come in half precision from layers under autocast."""
    settings = dict(dtype=dtype, points_dtype=points_dtype, fused=True, boxes=True)
    function, inputs = kernels(**settings)
    out, grads = run_with_grads(function, inputs)
    expected, expected_grads = run_with_grads(
        lambda *x: function(*x, backend='reference'), inputs, dtype=torch.float64
    )
    assert_close('out', expected, out)
    for name, x, e, a in zip(NAMES, inputs, expected_grads, grads, strict=True):
        assert a.dtype == x.dtype
        coarser = max((x.dtype, dtype), key=lambda d: torch.finfo(d).eps)
        assert_close(f'grad of {name}', e, a, coarser)


@every_dtype
@pytest.mark.parametrize('D', [2, 3, 4, 8, 12, 16, 24, 48, 64, 100, 136, 264, 300])
def test_widths_of_vectors_and_their_rests(kernels, D, dtype):
    check_operator(*kernels(D=D, Q=3, M=2, fused=True, dtype=dtype))


@pytest.mark.parametrize('P', [5, 25, 120, 341])
def test_many_points(kernels, P):
    check_operator(*kernels(P=P, Q=3, fused=True, boxes=True))


@pytest.mark.parametrize('boxes', [False, True], ids=['points', 'boxes'])
def test_reference_of_all_levels(kernels, boxes):
    function, inputs = kernels(fused=True, boxes=boxes)
    inputs[3] = inputs[3][:, :, :1]
    check_operator(function, inputs)


def test_views(kernels):
    function, (value, points, weights, _) = kernels(D=32)
    packed = torch.stack([value, value], 3)[:, :, :, 1]
    shifted = torch.cat([value[..., :1], value], -1)[..., 1:]
    spread = value.transpose(2, 3).contiguous().transpose(2, 3)
    points = points.transpose(0, 1).contiguous().transpose(0, 1)
    weights = torch.stack([weights, weights], -1)[..., 0]
    for view in (packed, shifted, spread):
        assert not view.is_contiguous()
        check_operator(function, [view, points, weights, None])


@every_form
@numbers
def test_places_that_are_nowhere_read_nothing(kernels, number, form):
    """They are as good as places far outside."""
    function, inputs = kernels(**form)
    far = [x if x is None else x.clone() for x in inputs]
    for points, coordinate in ((inputs[1], number), (far[1], 1e6)):
        points[0, 2, 1, 0, 1, 0] = coordinate
        points[1, 3, 0, 2, 0, 1] = coordinate
    out, grads = run_with_grads(function, inputs)
    expected, expected_grads = run_with_grads(
        lambda *x: function(*x, backend='reference'), far, dtype=torch.float64
    )
    assert_close('out', expected, out)
    for name, e, a in zip(NAMES, expected_grads, grads, strict=True):
        if e is not None:
            assert_close(f'grad of {name}', e, a)


@numbers
def test_references_that_are_nowhere_read_nothing(kernels, number):
    function, inputs = kernels(fused=True, boxes=True)
    inputs[3][1, 4, 0] = number
    out, grads = run_with_grads(function, inputs)
    assert out.isfinite().all() and all(x.isfinite().all() for x in grads)
    assert (grads[3][1, 4, 0] == 0).all() and (grads[1][1, 4, :, 0] == 0).all()


def test_pixels_out_of_reach_do_not_matter(kernels):
    """A NaN that nothing samples stays where it is."""
    levels = ((9, 9),)
    function, (value, points, weights, _) = kernels(shapes=levels)
    value.unflatten(1, levels[0])[:, :4] = float('nan')
    inputs = value, points.clamp(0.6, 1.2), weights, None
    out, grads = run_with_grads(function, inputs)
    assert out.isfinite().all() and all(x.isfinite().all() for x in grads[:3])
    assert (grads[0].unflatten(1, levels[0])[:, :4] == 0).all()


@pytest.mark.parametrize('empty', [dict(B=0), dict(Q=0)], ids=['images', 'queries'])
@every_form
def test_nothing_to_do(kernels, empty, form):
    out, grads = run_with_grads(*kernels(**form, **empty))
    assert out.numel() == 0
    assert all((x == 0).all() for x in grads if x is not None)


@every_form
def test_some_gradients(kernels, form):
    function, inputs = kernels(**form)
    wanted = [False, True, True, inputs[3] is not None]
    check_operator(function, inputs, wanted)


@every_form
def test_runs_repeat(kernels, form):
    """The sums of the gradient of values, too, but for a GPU's."""
    function, inputs = kernels(**form, Q=31)
    (first, grads), (second, others) = (
        run_with_grads(function, inputs) for _ in range(2)
    )
    assert torch.equal(first, second)
    start = 1 if inputs[0].is_cuda else 0
    pairs = list(zip(grads, others, strict=True))[start:]
    assert all(a is None or torch.equal(a, b) for a, b in pairs)


@every_form
def test_gradcheck(kernels, form):
    function, inputs = kernels(dtype=torch.float64, Q=3, D=5, M=2, B=1, **form)
    inputs = [x if x is None else x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(function, inputs)


@every_form
def test_library_operator(kernels, form):
    _, inputs = kernels(**form)
    tensors = [x if x is None else x.requires_grad_() for x in inputs]
    shapes = [side for level in LEVELS for side in level]
    torch.library.opcheck(
        torch.ops.mmattn.ms_deform_attn.default, (*tensors, shapes, kernels.backend)
    )


def test_compiles_whole(kernels):
    """The choice of the backend can be traced."""
    function, (value, points, weights, reference) = kernels(fused=True)

    @torch.compile(fullgraph=True, backend='aot_eager')
    def compiled(value, points, weights, reference):
        return fused_ms_deform_attn(
            value, LEVELS, reference, points, weights, backend=kernels.backend
        )

    expected = function(value, points, weights, reference)
    assert torch.equal(compiled(value, points, weights, reference), expected)


def test_autocast(kernels):
    """Value in bfloat16, locations in float32."""
    _, (value, points, weights, _) = kernels()
    tensors = value, LEVELS, points, weights
    with torch.autocast(value.device.type, torch.bfloat16):
        out = ms_deform_attn(*tensors, backend=kernels.backend)
    assert out.dtype == torch.bfloat16
    assert_close('out', ms_deform_attn(*tensors, backend='reference'), out)
