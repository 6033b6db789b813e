"""tools/benchmark/operators: the structure-aware cases are what the paper compares."""

import dataclasses
import importlib

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tools.benchmark import op
from tools.benchmark.operators import lisa_block as block
from tools.benchmark.operators import structure_aware_attention as attention
from tools.benchmark.tolerances import assert_close

LiSANet = importlib.import_module('mmattn.models.backbones').LiSANet
# Millions of multiply-accumulates, from 7 x 7 to 84 x 84, as printed.
PAPER_FLOPS = {
    'lisa': ('21.8', '87.3', '349', '1.4e3', '3.1e3'),
    block.BASELINE: ('22.7', '102', '584', '5.2e3', '22.2e3'),
    'convolutional_attention (MViTv2)': ('23.1', '104', '413', '1.6e3', '3.7e3'),
}


def rounding(printed: str) -> float:
    """Half a unit of the last digit."""
    digits, _, exponent = printed.partition('e')
    decimals = len(digits.partition('.')[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)


def by_method(side: int) -> dict:
    return {c.method: c for c in block.cases(side, 1, 'cpu', torch.float32)}


@pytest.mark.parametrize('index', (0, 2, 4), ids=str)
def test_flops_of_the_blocks_are_the_papers(index):
    cases = by_method(block.SIDES[index])
    for method, printed in PAPER_FLOPS.items():
        flops, expected = cases[method].columns['paper_flops_m'], printed[index]
        slack = 1.1 * rounding(expected)  # 22.25 G is printed as 22.2
        assert flops == pytest.approx(float(expected), abs=slack), method
    # Our count is without norms and with the transforms, which LiSA alone has.
    for method, case in cases.items():
        more = case.columns['flops_m'] > case.columns['paper_flops_m']
        assert more == (method == 'lisa')


def test_lisa_block_is_that_of_the_network():
    network = LiSANet('isotropic').blocks[0]
    case = by_method(14)['lisa']
    expected = [parameter.shape for parameter in network.parameters()]
    assert [tensor.shape for tensor in case.tensors[1:]] == expected


@pytest.mark.parametrize('side', [5, 8])
def test_transforms_as_products(side):
    """The inverse of a half-spectrum by DFT matrices, counted and compared."""
    half = side // 2 + 1
    x = torch.randn(3, side, side, dtype=torch.float64)
    spectrum = torch.fft.rfft2(x)
    index = torch.arange(side, dtype=torch.float64)
    turns = index[:, None] * index / side
    down = torch.exp(2j * torch.pi * turns) / side
    along = down[:half] * torch.tensor(
        [1 if i in (0, side / 2) else 2 for i in range(half)]
    ).view(-1, 1)
    with FlopCounterMode(display=False) as counter:
        rows = [
            a.matmul(b)
            for a in (down.real, down.imag)
            for b in (spectrum.real, spectrum.imag)
        ]
        columns = rows[0] - rows[3], rows[1] + rows[2]
        actual = columns[0].matmul(along.real) - columns[1].matmul(along.imag)
    assert_close('inverse', x, actual)
    flops = attention.dft_flops(side, batch=3, channels=1, patterns=8)
    transforms = 2 + 2 * 8
    assert flops['forward'] == transforms * counter.get_total_flops()
    assert flops['forward+backward'] == 2 * flops['forward']


def test_floor_takes_the_shorter_transform():
    case = attention.cases(8, 1, 'cpu', torch.float32)[0]
    rates = {'bytes': 1.0, 'flops': 1.0, 'vector_flops': 1.0}
    fft = op.least_seconds(case, 'forward', rates)['flops']
    kernels = 17 * 16
    assert fft == 2 * 64 * (192 * (34 * 6 + 2 * 16) + kernels * 6)
    slow = rates | {'vector_flops': 1e-6}
    dense = op.least_seconds(case, 'forward', slow)['flops']
    assert dense == case.dft_flops['forward'] > fft
    only_fft = dataclasses.replace(case, dft_flops={})
    assert op.least_seconds(only_fft, 'forward', slow)['flops'] == pytest.approx(
        1e6 * fft
    )
    products = attention.cases(8, 1, 'cpu', torch.float32)[-1]
    seconds = op.least_seconds(products, 'forward', slow)
    assert seconds['flops'] == 2 * 2 * 192 * 64**2
    assert seconds['bytes'] == 4 * 4 * 192 * 64
