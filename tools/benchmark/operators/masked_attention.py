"""Masked attention beside its dense definition, full attention and an unfold form.

The shape is stage 1 of H-MaiT-T: 96 channels in 3 heads, all masked, 3 x 3. q, k and v
are views of one packed tensor, as a model's projection leaves them, and every method
takes and returns (B, N, M, D). A soft mask admits all tokens, so it is quadratic, as
are the definition and the peers without a mask. On a CPU those run up to `CPU_TOKENS`
only, since one call on larger maps takes minutes. FlexAttention has no backward there.
It computes all scores, since the tokens outside the mask take part.

The network is that of "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, section 5.4.
"""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from mmattn.ops import masked_attention
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_masked_inputs

from . import flex
from .case import Case, Side, grid_of
from .dense import sdpa

OPERATOR = 'masked_attention'
SIDES = (14, 28, 56, 112, (200, 334))
RECTANGLES = True
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, KERNEL = 3, 32, 3
CPU_TOKENS = {'full': 112**2, 'soft': 56**2}
# N x N maps, and copies of q, k or v, that are held at once.
HARD_MAPS = {'forward': 2, 'forward+backward': 3}
SOFT_MAPS = {'forward': 3, 'forward+backward': 5}
UNFOLD_COPIES = {'forward': 20, 'forward+backward': 39}


def unfold_attention(q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int]) -> Tensor:
    """Compute the hard mask in linear time with nine copies of k and of v.

    Weights are relative to e^0, the weight of every token, so the sum of all values
    carries those outside the mask.
    """
    B, N, M, D = q.shape

    def neighbors(x: Tensor) -> Tensor:
        """Unfold (B, N, ..) to (B, .., R * R, N), 0 outside the map."""
        maps = x.flatten(2).transpose(1, 2).unflatten(2, grid)
        taps = F.unfold(maps, KERNEL, padding=KERNEL // 2)
        return taps.view(B, *x.shape[2:], KERNEL**2, N)

    q = (q * D**-0.5).permute(0, 2, 3, 1).unsqueeze(3)  # (B, M, D, 1, N)
    scores = (q * neighbors(k)).sum(2, keepdim=True)  # (B, M, 1, R * R, N)
    # Keys outside the map are 0, and so are their scores and weights.
    shift = scores.detach().amax(3, keepdim=True).clamp(min=0)
    outside = (-shift).exp()
    weights = (scores - shift).exp() - outside
    total = weights.sum(3) + N * outside.squeeze(3)
    values = v.sum(1)[..., None] * outside.squeeze(3)  # (B, M, D, N)
    out = ((weights * neighbors(v)).sum(3) + values) / total
    return out.permute(0, 3, 1, 2)


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    grid = grid_of(side)
    N = prod(grid)
    q, k, v, _, alpha = make_masked_inputs(
        grid=grid,
        num_special=0,
        B=batch,
        M=HEADS,
        D=WIDTH,
        kernel_size=KERNEL,
        alpha=True,
        dtype=dtype,
        device=device,
    )
    for x in (q, k, v, alpha):
        x.requires_grad_()
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(q.shape, generator=generator).to(device, dtype)
    backend = OPERATORS[OPERATOR].choose(q, k, v, None, None)
    pairs = batch * HEADS * N**2
    exponentials = {'forward': pairs, 'forward+backward': 2 * pairs}

    def run(backend):
        return lambda q, k, v, alpha=None: masked_attention(
            q, k, v, grid, kernel_size=KERNEL, alpha=alpha, backend=backend
        )

    def unfold(q, k, v):
        return unfold_attention(q, k, v, grid)

    def needs(counts, size):
        return {which: count * size for which, count in counts.items()}

    def quadratic(method, call, tensors, maps=None, **kwargs):
        """Return a case with maps in float32 at least."""
        map_bytes = needs(maps or {}, pairs * max(4, dtype.itemsize))
        kwargs |= dict(needs=map_bytes, exponentials=exponentials)
        return Case(method, call, tensors, grad, **kwargs)

    by_flex, flex_options = flex.masked(grid, KERNEL), flex.options(device)
    ours, definition = f'{OPERATOR} ({backend})', f'{OPERATOR} (definition)'
    qkv, soft = [q, k, v], [q, k, v, alpha]
    copies = needs(UNFOLD_COPIES, q.numel() * dtype.itemsize)
    made = [
        Case(ours, run(None), qkv, grad, same_as=definition),
        Case('unfold', unfold, qkv, grad, needs=copies, same_as=ours),
    ]
    if device != 'cpu' or N <= CPU_TOKENS['full']:
        made += [
            quadratic(definition, run('reference'), qkv, HARD_MAPS),
            quadratic(BASELINE, sdpa, qkv),
            quadratic(flex.METHOD, by_flex, qkv, same_as=definition, **flex_options),
        ]
    if device != 'cpu' or N <= CPU_TOKENS['soft']:
        same_as = f'{definition}, soft'
        made += [
            quadratic(f'{ours}, soft', run(None), soft, same_as=same_as),
            quadratic(same_as, run('reference'), soft, SOFT_MAPS),
            quadratic(
                f'{flex.METHOD}, soft', by_flex, soft, same_as=same_as, **flex_options
            ),
        ]
    return made
