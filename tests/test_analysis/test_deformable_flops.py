"""Count deformable and neighborhood attention, and learned proposals."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count
from mmattn.analysis.flops import build
from mmattn.models.layers import NeighborhoodAttention
from mmattn.ops import deformable_attention, neighborhood_attention
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_deformable_inputs, make_neighborhood_inputs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
@pytest.mark.parametrize('align_corners', [False, True], ids=['dat', 'dat++'])
@pytest.mark.parametrize('keys', [1, 12])
def test_scores_and_values_count_and_the_bias_does_not(keys, align_corners, backward):
    B, grid, M, D = 2, (7, 5), 4, 8
    inputs = make_deformable_inputs(B=B, grid=grid, K=keys, M=M, D=D, G=2)
    q, k, v, positions, table = (x.detach().requires_grad_() for x in inputs)
    expected = 2 * 2 * B * 35 * keys * M * D
    operator = OPERATORS['deformable_attention']
    backends = set(operator.backends) - set(operator.unsupported(*inputs))
    assert 'torch' in backends
    for backend in (None, 'reference', *backends):
        with FlopCounterMode(display=False) as counter:
            out = deformable_attention(
                q,
                k,
                v,
                grid,
                positions,
                table,
                align_corners=align_corners,
                backend=backend,
            )
            if backward:
                out.sum().backward()
        flops = counter.get_total_flops()
        assert flops == expected * (3 if backward else 1), backend


@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
@pytest.mark.parametrize('grid', [(9, 8), (60, 50)], ids=str)
def test_windows_count_the_same_on_every_backend(grid, backward):
    inputs = make_neighborhood_inputs(grid=grid, B=1, M=2, D=4)
    expected = 2 * 2 * grid[0] * grid[1] * 25 * 2 * 4
    operator = OPERATORS['neighborhood_attention']
    backends = set(operator.backends) - set(operator.unsupported(*inputs))
    assert 'torch' in backends
    for backend in (None, 'reference', *backends):
        leaves = [x.detach().requires_grad_() for x in inputs]
        with FlopCounterMode(display=False) as counter:
            out = neighborhood_attention(*leaves, backend=backend)
            if backward:
                out.sum().backward()
        flops = counter.get_total_flops()
        assert flops == expected * (3 if backward else 1), backend


class ToChannelsLast(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1)


@pytest.mark.parametrize('side', [(2, 6), (7, 9), (20, 30), (50, 60)], ids=str)
@pytest.mark.parametrize('device', ['cpu', 'meta'])
def test_windows_count_whatever_they_are_run_in(side, device):
    """Small maps run as dense attention, larger ones in tiles, then as a stencil."""
    layer = NeighborhoodAttention(3, 1, kernel_size=5)
    model = nn.Sequential(ToChannelsLast(), layer).to(device)
    tokens = max(side[0], 5) * max(side[1], 5)  # padded to a window
    complexity = count(model, side)
    qkv, projection = 27 * tokens, 9 * side[0] * side[1]
    assert complexity.flops == qkv + projection + 2 * tokens * 25 * 3
    assert complexity.outside_masks == 0


def test_learned_proposals_count_as_they_are_executed():
    pytest.importorskip('mmdet')
    from mmdet.structures import DetDataSample
    from mmengine.config import Config

    cfg = Config.fromfile(ROOT / 'configs/sparse_rcnn/pvtv2_b2_3x_coco.py')
    cfg.model.backbone.arch = 'b0'
    cfg.model.neck.in_channels = [32, 64, 160, 256]
    cfg.model.rpn_head.num_proposals = 7
    model = build(cfg, 'cpu').eval()
    names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    sample = DetDataSample(metainfo={name: (64, 96) for name in names})
    sample.set_metainfo(dict(scale_factor=(1.0, 1.0)))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 64, 96), [sample], mode='predict')
    complexity = count(cfg, (64, 96))
    assert complexity.flops == counter.get_total_flops() // 2
    assert complexity.part('roi_head').flops > 0
