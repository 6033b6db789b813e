"""Every kernel compiles for sm_80 and sm_90 here, with few spills, no local memory."""

import math
import re
from collections import Counter, defaultdict
from functools import partial
from importlib.metadata import version
from itertools import product
from random import Random

import pytest
import torch
from interpreter import INTERPRETED
from kept_tensors import check_nothing_kept
from operator_cases import setup_registered
from operator_checks import run_kernels

from mmattn.ops.structure_aware_attention.triton_short import parts_of
from mmattn.ops.triton.launch import cdiv
from tools.benchmark.inputs import Draw
from tools.benchmark.real_shapes import PYRAMID
from tools.benchmark.tolerances import deterministic
from tools.gpu.compile import ptx, record_launches, resources

pytest.importorskip('triton')

pytestmark = pytest.mark.skipif(
    INTERPRETED, reason='kernels made for the interpreter do not compile'
)

SHARED_MEMORY = 99 * 1024  # bytes of a block on the smallest device of sm_8x
# Bytes that releases of Triton spill, in a few kernels of each form.
SPILLED = {
    '3.6': {'landmark': 24, 'soft': 16, 'small': 56},
    '3.9': {'landmark': 88},
}.get('.'.join(version('triton').split('.')[:2]), {})
FULL, HALF, F16 = torch.float32, torch.bfloat16, torch.float16
ALL = FULL, HALF, F16
KERNELS = {  # those that each launch of a form contains
    'landmark': '_attend_kernel _fold_kernel _context_kernel _bwd_context_kernel '
    '_bwd_means_kernel _unfold_kernel',
    'hard': '_fwd_kernel _bwd_queries_kernel _bwd_keys_kernel',
    'soft': '_soft_fwd_kernel _delta_kernel _soft_bwd_queries_kernel '
    '_soft_bwd_keys_kernel',
    'short': '_parts_kernel _matrices_kernel _convolve_kernel _bwd_convolve_kernel '
    '_bwd_matrices_kernel _bwd_kernels_kernel',
    'small': '_dft_kernel _spectrum_kernel _contract_kernel _bwd_correlate_kernel',
    'medium': '_dft_kernel _spectrum_kernel _contract_kernel _bwd_maps_kernel',
    'large': '_product_kernel _maps_kernel _bwd_maps_kernel',
    'deformable': '_cells_kernel _places_kernel _fwd_kernel _bwd_queries_kernel '
    '_bwd_table_kernel _bwd_keys_kernel',
    'atomics': '_fwd_kernel _bwd_kernel',
    'in order': '_fwd_kernel _bwd_kernel _bwd_value_kernel',
    'windows': '_fwd_kernel _bwd_queries_kernel _bwd_keys_kernel',
}
LONG = dict(B=1, N=4200, L=49)
DETR = dict(shapes=PYRAMID, Q=300, B=1, M=8, D=32, P=4)
LANDMARK = {
    'paper stage 3': (dict(LONG, M=10, D=32, E=10), ALL),
    'largest': (dict(LONG, M=32, D=128, E=64), (FULL, HALF)),
    'no mixing': (dict(LONG, M=10, D=32), (FULL, HALF)),
    'paper stage 3, batch 128': (dict(B=128, N=196, L=49, M=10, D=32, E=10), (HALF,)),
    'no mixing, width 128': (dict(LONG, M=10, D=128), (FULL, HALF)),
    'one head': (dict(LONG, M=1, D=64, E=1), (FULL,)),
    'heads 5, width 5': (dict(B=1, N=33, L=49, M=5, D=5, E=5), (FULL,)),
    'heads 8, width 128': (dict(LONG, M=8, D=128, E=8), (FULL,)),
    'heads 16': (dict(LONG, M=16, D=32, E=16), (FULL, HALF)),
    'heads 32, mixed 32': (dict(B=2, N=400, L=49, M=32, D=32, E=32), (F16,)),
}
HARD = {
    'H-MaiT stage 1': dict(grid=(56, 56), M=3, D=32, num_special=0, bias=True),
    'detection': dict(grid=(200, 334), B=2, M=3, D=32, num_special=0),
    'MaiT-T': dict(grid=(14, 14), M=3, D=64),
    'MaiT-XS, R 7': dict(grid=(14, 14), M=3, D=96, kernel_size=7),
    'width 128': dict(grid=(28, 28), D=128, num_special=0),
    'width 5': dict(grid=(7, 5), B=1, M=1, D=5, bias=True),
    'neg_inf': dict(grid=(7, 5), D=32, bias=True, mask_fill='neg_inf'),
    'neg_inf, no special token': dict(
        grid=(7, 5), D=32, num_special=0, mask_fill='neg_inf'
    ),
    'one token': dict(grid=(1, 1), B=1, M=1, D=1, num_special=0),
}
SOFT = {
    'MaiT-T': dict(alpha=True, grid=(14, 14), M=3, D=64),
    'MaiT-XS': dict(alpha=True, grid=(14, 14), M=3, D=96, num_special=2),
    'detection': dict(alpha=True, grid=(50, 84), D=32, num_special=0),
    'width 128': dict(alpha=True, grid=(28, 28), D=128, kernel_size=5),
    'width 5, one token': dict(alpha=True, grid=(1, 1), B=1, M=1, D=5, num_special=0),
}
GRIDS = {  # and numbers of images and heads
    **{(7, 7): (32, 24), (14, 14): (32, 20), (28, 28): (32, 8), (56, 56): (32, 4)},
    **{(64, 64): (32, 4), (84, 84): (8, 12), (4, 14, 14): (8, 12), (7, 5): (2, 3)},
    **dict.fromkeys([(64, 7), (64, 28), (28, 14), (28, 56), (14, 28)], (1, 1)),
    **dict.fromkeys([(14, 56), (64,)], (2, 3)),
}
DEFORMABLE = {
    'DAT++ stage 1': dict(grid=(56, 56), K=49, M=2, G=1, D=32),
    'DAT++ stage 3': dict(grid=(14, 14), K=49, M=8, G=4, D=32),
    'stage 1 in a detector': dict(
        grid=(200, 334), K=1025, B=1, M=2, G=1, D=32, table_size=(111, 111)
    ),
    'stage 3 in a detector': dict(
        grid=(50, 84), K=1050, B=1, M=8, G=4, D=32, table_size=(27, 27)
    ),
    **{f'window, width {D}': dict(grid=(28, 28), K=49, D=D) for D in (16, 48, 64)},
    **{
        f'four taps, width {D}': dict(grid=(28, 28), K=49, D=D, table_size=(27, 27))
        for D in (16, 48, 64)
    },
    'one query, one key': dict(grid=(1, 1), K=1, B=1, M=1, G=1, D=5),
}
SAMPLED = {
    'Deformable DETR': dict(DETR, fused=True),
    'Deformable DETR, boxes': dict(DETR, fused=True, boxes=True),
    'locations': DETR,
    'Mask2Former': dict(DETR, shapes=PYRAMID[1:], fused=True),
    'ViT-Adapter': dict(DETR, shapes=PYRAMID[:1], M=12, D=64, fused=True),
    'levels 8': dict(DETR, shapes=PYRAMID * 2, fused=True, boxes=True),
    'points 37': dict(DETR, P=37, fused=True),
    'points 2048': dict(DETR, shapes=PYRAMID * 2, P=256, fused=True),
    **{f'width {D}': dict(DETR, D=D, fused=True) for D in (8, 30, 48, 71, 128)},
    'width 256, boxes': dict(DETR, D=256, fused=True, boxes=True),
    'one of everything': dict(shapes=((1, 1),), Q=1, B=1, M=1, D=1, P=1),
}


def form_of(grid, K, dtype):
    """Return the kernels of structure-aware attention that a grid takes."""
    if parts_of(grid, 16, K, torch.empty(0, dtype=dtype, device='meta')):
        return 'short'
    if len(grid) > 2 or max(grid) > 64:
        return 'large'
    return 'medium' if max(grid) > 32 else 'small'


EDGES = {
    'short': {'one token': dict(grid=(1, 1), B=1, M=1, D=1, K=1)},
    'small': {
        'one pattern': dict(grid=(14, 14), B=1, M=1, D=5, K=1),
        'patterns 33': dict(grid=(28, 28), D=128, K=33),
    },
    'large': {'width 128': dict(grid=(66, 66), D=128, K=33)},
}
WINDOWS = {
    f'K {K}, width {D}': dict(grid=(28, 28), K=K, B=1, M=4, D=D)
    for K, D in product((3, 7, 13), (16, 32, 64))
}


def rows(operator, form, shapes, dtypes=ALL):
    return [
        (operator, form, name, shape, dtype)
        for (name, shape), dtype in product(shapes.items(), dtypes)
    ]


SPECTRAL = 'structure_aware_attention'
ROWS = [
    ('landmark_attention', 'landmark', name, shape, dtype)
    for name, (shape, dtypes) in LANDMARK.items()
    for dtype in dtypes
]
ROWS += rows('masked_attention', 'hard', HARD)
ROWS += rows('masked_attention', 'soft', SOFT)
for (grid, (B, M)), K, dtype in product(GRIDS.items(), (8, 16), (FULL, HALF)):
    shape = dict(grid=grid, B=B, M=M, D=16, K=K)
    ROWS += rows(SPECTRAL, form_of(grid, K, dtype), {f'{grid}, K {K}': shape}, [dtype])
for form, shapes in EDGES.items():
    ROWS += rows(SPECTRAL, form, shapes, [FULL])
ROWS += rows('deformable_attention', 'deformable', DEFORMABLE)
ROWS += [
    ('ms_deform_attn', order, name, shape, dtype)
    for (name, shape), order, dtype in product(
        SAMPLED.items(), ('atomics', 'in order'), ALL
    )
    if name in ('Deformable DETR', 'locations')
    or (order, dtype) in (('atomics', FULL), ('in order', HALF))
]
ROWS += [
    row
    for row in rows('neighborhood_attention', 'windows', WINDOWS)
    if (row[3]['D'], row[4]) != (64, FULL)
]
CELLS = {
    f'{form}, {name}, {str(dtype)[6:]}, sm_{capability}': (
        *(operator, form, dict(shape, dtype=dtype), capability),
    )
    for (operator, form, name, shape, dtype), capability in product(ROWS, (80, 90))
}


def launches_of(
    operator: str, *, in_order: bool = False, capability: int = 80, **shape
):
    """List the launches of forward and backward, once each."""
    inputs, settings = setup_registered(operator, **shape)
    inputs = [None if x is None else x.to('meta') for x in inputs]
    with deterministic(in_order), record_launches(capability) as launches:
        run_kernels(operator, 'triton', inputs, settings)
    return [*{repr(launch): launch for launch in launches}.values()]


@pytest.mark.slow  # each compiles for seconds or minutes
@pytest.mark.parametrize('operator, form, shape, capability', CELLS.values(), ids=CELLS)
def test_few_spills_and_no_local_memory(operator, form, shape, capability):
    launches = launches_of(
        operator, in_order=form == 'in order', capability=capability, **shape
    )
    kernels, expected = {x.kernel for x in launches}, set(KERNELS[form].split())
    assert kernels >= expected
    if form in ('soft', 'deformable', 'atomics', 'in order', 'windows'):
        assert kernels == expected
    for launch in launches:
        usage = resources(launch, capability)
        print(launch.kernel, launch.constants, capability, usage)  # with pytest -s
        spilled = SPILLED.get(form, 0)
        if form == 'landmark':  # tiles without spills take more instructions
            narrow = shape['M'] * shape['D'] <= 320
            if shape['dtype'] != FULL:
                spilled = max(spilled, 40 if narrow else 120)
            elif not narrow:
                spilled = max(spilled, 48)
        assert usage['STACK'] <= spilled and usage['LOCAL'] == 0, (launch, usage)
        assert usage['SHARED'] <= SHARED_MEMORY, (launch, usage)
    if operator == 'ms_deform_attn' and shape['D'] % 8 == 0:
        check_packets(launches, shape, form == 'in order', capability)


def check_packets(launches, shape, in_order, capability):
    """Samples are loaded by 16 bytes, and added by 16 bytes where sm_90 can."""

    def count(pattern, launch):
        return len(re.findall(pattern, ptx(launch, capability)))

    forward, backward = launches[:2]
    samples = 4 * len(shape['shapes'])
    width = 4 if shape['dtype'] == FULL else 2
    assert count(r'ld\.global\.v4\.b32', forward) >= samples
    assert count(rf'ld\.global\.v{width}\.b32', backward) >= samples
    vectors = count(r'(red|atom)\.global\.\S*add\.v4\.f32', backward)
    single = count(r'(red|atom)\.global\.\S*add\.f32', backward)
    if in_order:
        assert vectors == single == 0
    elif capability >= 90:
        assert vectors >= samples and not single
    else:
        assert single >= samples and not vectors  # sm_80 has no others
    assert not count(r'atom\.\S*cas', backward)


def at_stride(stride: int, sides):
    return tuple(cdiv(side, stride) for side in sides)


MULTI_SCALE = {  # calls of models, by the sides of an image
    'landmark_attention': lambda sides: dict(
        B=2, N=math.prod(at_stride(16, sides)), L=49, M=10, D=32, E=10
    ),
    'masked_attention': lambda sides: dict(
        grid=at_stride(8, sides), B=2, M=3, D=32, num_special=1, bias=True
    ),
    'masked_attention, soft': lambda sides: dict(
        grid=at_stride(16, sides), B=2, M=3, D=48, alpha=True
    ),
    'structure_aware_attention, stage 3': lambda sides: dict(
        grid=at_stride(16, sides), B=2, M=20, D=16, K=8
    ),
    'structure_aware_attention, stage 4': lambda sides: dict(
        grid=at_stride(32, sides), B=2, M=24, D=16, K=8
    ),
    'deformable_attention': lambda sides: dict(
        grid=at_stride(16, sides), B=2, M=8, G=4, D=32, table_size=(27, 27),
        K=math.prod(at_stride(32, sides)),
    ),
    'neighborhood_attention': lambda sides: dict(
        grid=at_stride(32, sides), K=7, B=2, M=16, D=32
    ),
    'ms_deform_attn': lambda sides: dict(
        shapes=tuple(at_stride(stride, sides) for stride in (8, 16, 32, 64)),
        Q=math.prod(at_stride(32, sides)), B=2, M=3, D=8, P=4, fused=True, boxes=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', MULTI_SCALE)
def test_images_of_all_sizes_share_compiled_kernels(name, monkeypatch):
    """Multi-scale training on 150 sizes compiles at most 4 times what one size does."""
    on_meta = partial(torch.empty, dtype=torch.float64, device='meta')
    monkeypatch.setattr(Draw, 'exact', lambda self, *shape: on_meta(shape))
    monkeypatch.setattr(Draw, 'to', lambda self, x, dtype=None: x.to(dtype or FULL))
    random, operator = Random(0), name.split(',')[0]
    variants, of_one_size = defaultdict(set), Counter()
    with check_nothing_kept():  # a CUDA graph would overwrite it
        for _ in range(150):
            sides = random.randint(480, 800), random.randint(480, 1333)
            shape = MULTI_SCALE[name](sides)
            calls = launches_of(operator, **shape)
            if operator == 'ms_deform_attn':
                calls += launches_of(operator, in_order=True, **shape)
            for call in calls:
                variants[call.module, call.kernel].add(repr(call))
            of_one_size |= Counter((call.module, call.kernel) for call in calls)
        del call, calls
    counts = {kernel: (len(x), of_one_size[kernel]) for kernel, x in variants.items()}
    print(name, counts)  # with pytest -s
    assert all(all_sizes <= 4 * one for all_sizes, one in counts.values()), counts
