"""Results of every kernel of multi-scale deformable attention.

PyTorch's operators on the CPU, Triton's kernels, and the compiled ones: the extension
is built here for the CPU, and the CUDA kernels run on a CPU where there is no GPU.
"""

import compiled_extension
import pytest
import torch
from interpreter import slowly_interpreted
from operator_cases import every_form, names_of, on_gpu
from operator_cases import setup as setup_operator
from operator_checks import check_operator, every_dtype

from mmattn.ops.common import extension, pieces
from mmattn.ops.ms_deform_attn import cuda_impl
from tools.benchmark.tolerances import assert_close, deterministic, run_with_grads

NAMES = names_of('ms_deform_attn')
SMALL = dict(shapes=((3, 4), (2, 1), (1, 1)), Q=7, B=2, M=2, D=6, P=3)
COMPILED = [pytest.mark.slow, compiled_extension.needs('c++')]
KERNELS = [
    pytest.param('torch', 'cpu', '', id='torch'),
    *(
        pytest.param('triton', device, way, marks=marks, id=f'triton, {way}, {device}')
        for way in ('atomics', 'in order')
        for device, marks in (('cpu', slowly_interpreted), ('cuda', on_gpu))
    ),
]
COMPILED_KERNELS = [
    pytest.param('cpp', 'cpu', '', marks=COMPILED, id='cpp'),
    pytest.param('cuda', 'cpu', '', marks=COMPILED, id='emulated'),
    pytest.param('cuda', 'cuda', '', marks=[*COMPILED, *on_gpu], id='cuda'),
]
every_kernel = pytest.mark.parametrize(
    'backend, device, way', KERNELS + COMPILED_KERNELS
)
every_compiled_kernel = pytest.mark.parametrize(
    'backend, device, way', COMPILED_KERNELS
)


@pytest.fixture
def setup(monkeypatch, backend, device, way):
    """Return `setup` for a kernel."""
    if backend == 'torch':
        monkeypatch.setattr(pieces, 'ELEMENTS', 250)  # three queries at a time
    elif (backend, device) == ('cuda', 'cpu'):
        compiled_extension.load_emulation()
        monkeypatch.setattr(cuda_impl, 'OPERATORS', torch.ops.mmattn_emulated)
        monkeypatch.setattr(cuda_impl, 'unsupported', lambda *tensors: None)
    elif backend == 'cuda' and extension.CUDA_UNAVAILABLE:
        pytest.skip(extension.CUDA_UNAVAILABLE)

    def set_up(**settings):
        settings = SMALL | dict(device=device) | settings
        return setup_operator('ms_deform_attn', backend, **settings)

    with deterministic(way == 'in order'):
        yield set_up


@every_form
@every_kernel
def test_forms(setup, form):
    function, inputs = setup(**form)
    check_operator(function, inputs)
    if form:  # ViT-Adapter's references have a level axis of 1
        check_operator(function, [*inputs[:3], inputs[3][:, :, :1]])


@every_kernel
@pytest.mark.parametrize(
    'dtype, points_dtype',
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
def test_points_of_another_dtype(setup, dtype, points_dtype):
    """Offsets and logits come in half precision from layers under autocast."""
    function, inputs = setup(
        B=1, P=1, fused=True, boxes=True, dtype=dtype, points_dtype=points_dtype
    )
    out, grads = run_with_grads(function, inputs)
    expected, expected_grads = run_with_grads(
        lambda *x: function(*x, backend='reference'), inputs, dtype=torch.float64
    )
    assert_close('out', expected, out)
    for name, x, e, a in zip(NAMES, inputs, expected_grads, grads, strict=True):
        assert a.dtype == x.dtype
        coarser = max((x.dtype, dtype), key=lambda d: torch.finfo(d).eps)
        assert_close(f'grad of {name}', e, a, coarser)


@every_kernel
def test_places_on_and_between_pixels_and_outside(setup):
    """At kinks of the gradients, only output and gradient of value are compared;
    sides of 4 and 8 make all places exact."""
    side = torch.tensor([-1e9, -1, -0.125, 0, 0.0625, 0.125, 0.5, 0.9375, 1, 1.125, 7])
    points = torch.cartesian_prod(side, side)[None, :, None, None, None]
    function, inputs = setup(shapes=((4, 8),), Q=len(side) ** 2, B=1, M=1, P=1)
    inputs[1] = points.to(inputs[1])
    check_operator(function, inputs, [True, False, True, False])


@every_form
@every_kernel
def test_places_that_are_nowhere(setup, form, backend):
    """They give and get nothing, as places far outside.

    On the CPU the gradient of a box's sides has them times 0.
    """
    function, inputs = setup(**form, M=3)
    bad = torch.zeros(inputs[2].shape, dtype=torch.bool)
    numbers = float('nan'), float('nan'), float('inf'), -float('inf'), 3e38
    for q, number in enumerate(numbers):
        inputs[1][:, q, :, :, 0, q % 2] = number
        bad[:, q, :, :, 0] = True
    inputs[1][1, 5], bad[1, 5] = float('nan'), True
    out, grads = run_with_grads(function, inputs)
    far = inputs[1].clone()
    far[bad] = 1e6
    expected, expected_grads = run_with_grads(
        lambda *x: function(*x, backend='reference'),
        [inputs[0], far, *inputs[2:]],
        dtype=torch.float64,
    )
    assert_close('out', expected, out)
    compared = 3 if backend == 'torch' and 'boxes' in form else 4
    for name, e, a in list(zip(NAMES, expected_grads, grads, strict=True))[:compared]:
        if e is not None:
            assert_close(f'grad of {name}', e, a)
    assert not grads[1][bad].any() and not out[1, 5].any()


@pytest.mark.parametrize('backend, device, way', KERNELS[1:] + COMPILED_KERNELS)
@pytest.mark.parametrize('number', [float('nan'), float('inf')], ids=str)
def test_references_that_are_nowhere(setup, number):
    function, inputs = setup(fused=True, boxes=True)
    inputs[3][:, 1, :, 2] = number  # the width of a box
    out, grads = run_with_grads(function, inputs)
    assert not out[:, 1].any() and not any(grad[:, 1].any() for grad in grads[1:])
    assert all(x.isfinite().all() for x in (out, *grads))


@every_kernel
def test_nan_reaches_what_sees_it_only(setup):
    """The query of a weight; no query of a pixel that none samples."""
    function, inputs = setup(shapes=((9, 9),), B=1)
    inputs[0].unflatten(1, (9, 9))[:, :4] = float('nan')
    inputs[1] = inputs[1].clamp(0.6, 1.2)
    inputs[2][0, 3, 1, 0, 1] = float('nan')
    out, grads = run_with_grads(function, inputs)
    hit = torch.zeros(1, 7, 2, dtype=torch.bool)
    hit[0, 3, 1] = True
    out = out.view(1, 7, 2, 6)
    assert out[hit].isnan().all() and out[~hit].isfinite().all()
    assert not grads[0].unflatten(1, (9, 9))[:, :4].any()


@every_form
@every_dtype
@every_compiled_kernel
def test_dtypes(setup, dtype, form, backend):
    if (backend, dtype) != ('cuda', torch.float64):
        check_operator(*setup(dtype=dtype, D=19, **form))


@pytest.mark.parametrize('D', [2, 3, 4, 8, 12, 16, 24, 48, 64, 100, 136, 264, 300])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@every_compiled_kernel
def test_widths_of_vectors_and_their_rests(setup, D, dtype):
    check_operator(*setup(D=D, Q=3, fused=True, dtype=dtype))


@pytest.mark.parametrize('P', [5, 25, 120, 341])
@every_compiled_kernel
def test_many_points(setup, P):
    check_operator(*setup(P=P, Q=3, fused=True, boxes=True))
