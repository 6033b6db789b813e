"""Shapes, forms and an oracle for the tests of neighborhood attention."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from mmattn.ops import neighborhood_attention
from mmattn.ops.neighborhood_attention import stencil, tiles

NAMES = 'q k v rpb'.split()
SHAPES = {
    'map of the window': dict(grid=(7, 7), K=7),
    'low and long': dict(grid=(7, 20), K=7),
    'one more than the window': dict(grid=(8, 8), K=7),
    '13x9': dict(grid=(13, 9), K=7),
    '7x5, one head, batch 1': dict(grid=(7, 5), K=3, M=1, B=1),
    '63 pixels, odd width of a head': dict(grid=(9, 7), K=5, D=5),
    'one channel': dict(grid=(4, 6), K=3, D=1),
    'several tiles': dict(grid=(17, 23), K=3, B=1, M=2),
}
FORMS = {  # TILED_PIXELS, DENSE_PIXELS, BORDER_TILE
    'dense': (10**9, 10**9, 14),
    'tiles': (10**9, 0, 14),
    'stencil': (0, 0, 4),
    'stencil-whole-border': (0, 0, 10**9),
}

every_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES.keys())


def choose_form(monkeypatch: pytest.MonkeyPatch, form: str):
    """Make maps of any size take one of `FORMS`."""
    tiled, dense, border = FORMS[form]
    monkeypatch.setattr(stencil, 'TILED_PIXELS', tiled)
    monkeypatch.setattr(tiles, 'DENSE_PIXELS', dense)
    monkeypatch.setattr(tiles, 'BORDER_TILE', border)


def by_loops(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> Tensor:
    """Attend one query at a time, as NATTEN defines its window and bias."""
    _, H, W, M, D = q.shape
    K = (rpb.shape[1] + 1) // 2

    def window(position, side):
        start = min(max(position - K // 2, 0), side - K)
        return range(start, start + K)

    out = torch.zeros_like(q)
    for y, x, head in product(range(H), range(W), range(M)):
        keys = list(product(window(y, H), window(x, W)))
        rows, columns = torch.tensor(keys).unbind(1)
        bias = rpb[head, rows - y + K - 1, columns - x + K - 1]
        k_w, v_w = (tensor[:, rows, columns, head] for tensor in (k, v))
        scores = (k_w * q[:, None, y, x, head]).sum(-1) * D**-0.5 + bias
        weights = scores.softmax(dim=1)
        out[:, y, x, head] = (weights[..., None] * v_w).sum(1)
    return out


def backend(name):
    return partial(neighborhood_attention, backend=name)
