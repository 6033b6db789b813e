"""FLOPs of masked attention: dense and mask-credited, on every device and backend."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count
from mmattn.analysis.flop_rules import DENSE_RULES
from mmattn.models.layers import MaskedAttention
from mmattn.ops import masked_attention, neighborhood_mask
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_masked_inputs

PASSES = pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
SOFT = pytest.mark.parametrize('soft', [False, True], ids=['hard', 'soft'])
B, M, D = 2, 3, 8
CASES = [  # grid, width of the mask, special tokens, pairs of a query and a key
    pytest.param((14, 14), 3, 1, 196 * (9 + 1) + 197, id='14x14'),
    pytest.param((7, 5), 5, 0, 35 * 25, id='7x5'),
    pytest.param((4, 6), 3, 2, 24 * (9 + 2) + 2 * 26, id='two-special'),
    pytest.param((1, 63), 3, 0, 63 * 3, id='row'),
    pytest.param((2, 3), 7, 1, 7 * 7, id='inside-the-mask'),
]


def flops(grid, kernel_size, num_special, soft, backward, *, backend, rules=None):
    inputs = make_masked_inputs(
        grid=grid, num_special=num_special, B=B, M=M, D=D, alpha=soft
    )
    leaves = [x.detach().requires_grad_() for x in inputs if x is not None]
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        out = masked_attention(
            *leaves[:3],
            grid,
            kernel_size=kernel_size,
            num_special=num_special,
            alpha=leaves[3] if soft else None,
            backend=backend,
        )
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


def operator_backends():
    """Those that run the operator on this machine's CPU."""
    operator, q = OPERATORS['masked_attention'], torch.empty(1, 1, 1, 8)
    return set(operator.backends) - set(operator.unsupported(q, q, q, None, None))


@pytest.mark.parametrize('grid, kernel_size, num_special, pairs', CASES)
@SOFT
@PASSES
def test_operator_counts_the_pairs(
    grid, kernel_size, num_special, pairs, soft, backward
):
    """A hard mask those inside it, unclipped; a soft mask all, as plain attention."""
    N = num_special + grid[0] * grid[1]
    product = 2 * 2 * B * M * D * (3 if backward else 1)
    backends = operator_backends()
    assert 'torch' in backends
    problem = grid, kernel_size, num_special, soft, backward
    # Without a request, small maps take the definition where they need gradients.
    for backend in backends:
        credited = flops(*problem, backend=backend)
        assert credited == product * (N**2 if soft else pairs), backend
        dense = flops(*problem, backend=backend, rules=DENSE_RULES)
        assert dense == product * N**2, backend
    # What the definition multiplies, seen without a rule of ours.
    assert dense == flops(*problem, backend='reference')


@pytest.mark.parametrize('grid, kernel_size, num_special, pairs', CASES)
def test_borders_are_not_clipped(grid, kernel_size, num_special, pairs):
    """So a count is above that of the mask's ones, and equal where all see all."""
    ones = int(neighborhood_mask(grid, kernel_size, num_special).sum())
    everything = (num_special + grid[0] * grid[1]) ** 2
    assert ones < pairs < everything or ones == pairs == everything


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
@SOFT
def test_operator_counts_the_same_on_gpu(soft):
    inputs = make_masked_inputs(grid=(14, 14), alpha=soft)
    counts = set()
    for device in ('cpu', 'cuda'):
        q, k, v, _, alpha = (None if x is None else x.to(device) for x in inputs)
        with FlopCounterMode(display=False) as counter:
            masked_attention(q, k, v, (14, 14), num_special=1, alpha=alpha)
        counts.add(counter.get_total_flops())
    assert len(counts) == 1


class OnGrid(nn.Module):
    """Masked attention on maps of the size of an image, as `count` wants it."""

    def __init__(self, masked_heads: int, **kwargs):
        super().__init__()
        self.attention = MaskedAttention(M * D, M, masked_heads, **kwargs)

    def forward(self, image: Tensor) -> Tensor:
        grid = image.shape[-2:]
        N = self.attention.num_special + grid.numel()
        return self.attention(image.new_zeros(1, N, M * D), grid)


@pytest.mark.parametrize('backend', [None, 'torch', 'reference'])
@pytest.mark.parametrize('device', ['cpu', 'meta'])
@SOFT
def test_model_counts_the_same_everywhere(backend, device, soft):
    """Two masked heads of three, a class token, 7 x 5 patches."""
    N, width = 36, M * D
    model = OnGrid(2, soft=soft, num_special=1, backend=backend).to(device)
    complexity = count(model, (7, 5))
    dense = 4 * N * width**2 + 2 * N**2 * width
    outside = 0 if soft else 2 * (N**2 - 35 * 10 - N) * 2 * D
    assert complexity.outside_masks == outside
    assert complexity.flops_in('dense') == dense
    assert complexity.flops == complexity.flops_in('mask-credited') == dense - outside
    assert complexity.children['attention'].outside_masks == outside
    assert complexity.part('attention.qkv').outside_masks == 0
    assert model.attention.backend == backend


def test_without_masks_both_conventions_agree():
    complexity = count(OnGrid(0).to('meta'), (7, 5))
    assert complexity.flops_in('dense') == complexity.flops_in('mask-credited') > 0
