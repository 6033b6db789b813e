"""Choice of the implementation that runs a call."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from operator_cases import OPERATORS, REGISTERED, backends_of, setup
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn import ops
from mmattn.ops.common import extension
from mmattn.ops.triton import launch as triton_launch
from tools.benchmark.inputs import make_landmark_inputs


@pytest.fixture
def interpreted(monkeypatch):
    """Let the kernels of Triton be there."""
    monkeypatch.setattr(triton_launch, 'INTERPRETED', True)
    monkeypatch.setattr(triton_launch, 'UNAVAILABLE', None)


@pytest.mark.parametrize(
    'version, message',
    [('3.5.1', '3.6 or newer, got 3.5.1'), ('3.6.0', None), ('3.10.0+git1', None)],
)
def test_release_of_triton(interpreted, monkeypatch, version, message):
    monkeypatch.setattr(triton_launch.util, 'find_spec', lambda name: name)
    monkeypatch.setattr(triton_launch.metadata, 'version', lambda name: version)
    reason = triton_launch.reason_without_triton()
    assert reason is None if message is None else message in reason
    monkeypatch.setattr(triton_launch, 'UNAVAILABLE', reason)
    triton = backends_of('landmark_attention')['triton']
    assert triton.unsupported(*make_landmark_inputs()) == reason


@pytest.mark.parametrize(
    'name, shape, message',
    [
        *((name, dict(dtype=torch.float64), 'float64') for name in OPERATORS),
        ('landmark_attention', dict(M=33, D=8), '33'),
        ('landmark_attention', dict(M=2, D=129), '129'),
        ('landmark_attention', dict(M=2, E=65), '65'),
        ('masked_attention', dict(D=129), '129'),
        ('neighborhood_attention', dict(grid=(17, 17), K=17), '15 pixels a side, got'),
        ('neighborhood_attention', dict(D=33), 'at most 32 channels, got 33'),
        ('neighborhood_attention', dict(D=65, dtype=torch.half), 'at most 64 channels'),
        ('deformable_attention', dict(D=72), 'at most 64 channels, got 72'),
        ('ms_deform_attn', dict(D=257, M=1), 'at most 256 channels, got 257'),
        ('ms_deform_attn', dict(shapes=((1, 1),) * 9), 'at most 8 levels, got 9'),
        ('ms_deform_attn', dict(P=1025, Q=1, fused=True), 'most 2048 points, got 3075'),
        ('ms_deform_attn', dict(points_dtype=torch.float8_e5m2), 'got float8_e5m2'),
    ],
    ids=str,
)
def test_limits_of_triton(interpreted, name, shape, message):
    inputs = setup(name, **shape)[1]
    assert message in backends_of(name)['triton'].unsupported(*inputs)


def on_meta(*shape, strides):
    return torch.empty_strided(shape, strides, device='meta')


KEYS = [on_meta(1, 4, 2, 32, strides=(256, 64, 32, 1))] * 5
LARGE_KEYS = on_meta(1, 2**12, 2, 32, strides=(0, 2**20, 32, 1))
SMALL_MAP = on_meta(1, 2**12, 2**12, 4, 32, strides=(0, 0, 0, 0, 0))
LARGE_MAP = on_meta(1, 2**12, 2**12, 4, 32, strides=(0, 2**20, 128, 32, 1))
POINTS = torch.zeros(1, 1, 1, 1, 1, 2, device='meta')
PIXELS = on_meta(1, 2**31, 1, 1, strides=(0, 0, 0, 0))
TABLE = torch.empty(4, 5, 5)


@pytest.mark.parametrize(
    'name, tensors, message',
    [
        ('deformable_attention', KEYS, None),
        ('deformable_attention', [KEYS[0], LARGE_KEYS, *KEYS[2:]], '2**31'),
        ('deformable_attention', [*KEYS[:2], LARGE_KEYS, *KEYS[3:]], '2**31'),
        ('neighborhood_attention', [*[SMALL_MAP] * 3, TABLE], None),
        ('neighborhood_attention', [*[LARGE_MAP] * 3, TABLE], '2**31'),
        ('ms_deform_attn', [PIXELS, POINTS, POINTS[..., 0], None], 'fewer than 2^31'),
    ],
)
def test_offsets_that_32_bits_do_not_count(
    interpreted, monkeypatch, name, tensors, message
):
    triton = backends_of(name)['triton']
    monkeypatch.setattr(triton_launch, 'device_reason', lambda *_: None)
    reason = triton.unsupported(*tensors)
    assert reason is None if message is None else message in reason


def test_the_page_and_the_package_list_every_operator_and_its_backends():
    page = Path(__file__).parents[2] / 'docs/operators/index.md'
    rows = re.findall(r'^\| \[(\w+)\].*\| ([^|]*) \|$', page.read_text(), flags=re.M)
    listed = {name: re.findall(r'`(\w+)`', backends) for name, backends in rows}
    assert listed == {name: [*x.backends] for name, x in REGISTERED.items()}
    assert set(REGISTERED) <= set(ops.__all__)
    assert all(Path(ops.__file__).parent.joinpath(x).is_dir() for x in REGISTERED)


@pytest.mark.parametrize('operator', REGISTERED.values(), ids=REGISTERED)
def test_example(operator):
    tensors, settings = operator.example('cpu', torch.float32)
    arguments = *tensors, *settings.values(), 'torch'
    torch.library.opcheck(operator.forward.default, arguments)


@pytest.mark.parametrize('name', REGISTERED)
def test_gpus_older_than_the_kernels(monkeypatch, caplog, name):
    operator, tesla = REGISTERED[name], SimpleNamespace(name='T4', major=7, minor=5)
    kernels = [x for x in operator.backends if x in ('cuda', 'triton')]
    with FakeTensorMode():  # needs no GPU
        tensors, _ = operator.example('cuda:0', torch.float32)
    monkeypatch.setattr(triton_launch, 'UNAVAILABLE', None)
    monkeypatch.setattr(extension, 'CUDA_UNAVAILABLE', None)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: tesla)
    reason = 'requires a GPU of compute capability 8.0 or newer, got T4 of 7.5'
    assert operator.choose(*tensors) in ('torch', 'reference')
    assert all(f'{kernel}: {reason}' in caplog.text for kernel in kernels)
    for kernel in kernels:  # whose reasons `mmattn env` prints
        assert operator.unsupported(*tensors)[kernel] == reason
        with pytest.raises(ValueError, match=f'{kernel!r} cannot run .* {reason}'):
            operator.choose(*tensors, requested=kernel)
    tesla.major, tesla.minor = 8, 0
    assert operator.choose(*tensors) == kernels[0]
    monkeypatch.setattr(torch.version, 'hip', '7.0')
    tesla.major = 3
    assert operator.choose(*tensors) == kernels[0]
