"""Count multi-scale deformable attention and the modules built on it."""

from math import ceil
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count
from mmattn.analysis.flops import build
from mmattn.models import DeformableDETREncoder
from mmattn.ops import fused_ms_deform_attn, ms_deform_attn
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_ms_deform_inputs

ROOT = Path(__file__).parents[2]
SHAPES = [(7, 5), (4, 3), (1, 1)]
C, FEEDFORWARD, HEADS, POINTS, QUERIES = 256, 1024, 8, 4, 300


@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
@pytest.mark.parametrize('fused', [False, True], ids=['locations', 'fused'])
def test_four_pixels_and_a_weight_count(fused, backward):
    """For each channel of each point, on every backend."""
    B, Q, M, D, P = 2, 6, 3, 4, 2
    inputs = make_ms_deform_inputs(shapes=SHAPES, B=B, Q=Q, M=M, D=D, P=P, fused=fused)
    operator = OPERATORS['ms_deform_attn']
    backends = {*operator.backends, 'reference'} - set(operator.unsupported(*inputs))
    assert 'torch' in backends
    expected = 2 * 5 * B * Q * M * D * len(SHAPES) * P
    for backend in (None, *backends):
        if backend == 'reference':  # grid_sample has no rule
            continue
        value, points, weights, reference = (
            x if x is None else x.detach().requires_grad_() for x in inputs
        )
        with FlopCounterMode(display=False) as counter:
            if fused:
                arguments = value, SHAPES, reference, points, weights
                out = fused_ms_deform_attn(*arguments, backend=backend)
            else:
                out = ms_deform_attn(value, SHAPES, points, weights, backend=backend)
            if backward:
                out.sum().backward()
        flops = counter.get_total_flops()
        assert flops == expected * (3 if backward else 1), backend


def analytic(shape, levels=4, layers=6):
    """Multiply-accumulates of the parts of a Deformable DETR with 80 classes."""
    sides = [[ceil(side / stride) for side in shape] for stride in (8, 16, 32, 64)]
    pixels = [height * width for height, width in sides]
    inputs = sum(p * c * C for p, c in zip(pixels, (512, 1024, 2048), strict=False))
    inputs += pixels[3] * 9 * 2048 * C
    samples = HEADS * levels * POINTS
    ffn = 2 * C * FEEDFORWARD
    # Value and output projections, offsets and weights; four pixels and a weight.
    sampling = C * C + C * 3 * samples + 5 * POINTS * levels * C
    S = sum(pixels)
    encoder = layers * S * (C * C + sampling + ffn)
    self_attention = QUERIES * 4 * C * C + 2 * QUERIES**2 * C
    decoder = layers * (S * C * C + QUERIES * (sampling + ffn) + self_attention)
    boxes = layers * QUERIES * (2 * C * C + 4 * C)
    classes = layers * QUERIES * C * 80
    return S, dict(
        neck=inputs,
        encoder=encoder,
        decoder=decoder + QUERIES * C * 2,  # and the reference points
        bbox_head=boxes + classes,
    )


@pytest.mark.parametrize(
    'shape, tokens, total',
    [((800, 1333), 22223, 206.7), ((800, 1066), 17821, 166.2)],
    ids=['800x1333', '800x1066'],
)
def test_deformable_detr_counts_as_computed_by_hand(shape, tokens, total):
    pytest.importorskip('mmdet')
    from mmengine.config import Config

    cfg = Config.fromfile(ROOT / 'configs/deformable_detr/r50_50e_coco.py')
    complexity = count(cfg, shape)
    S, expected = analytic(shape)
    assert S == tokens
    for name, flops in expected.items():
        assert complexity.part(name).flops == flops, name
    assert complexity.flops / 1e9 == pytest.approx(total, abs=0.05)


def test_padding_and_devices_count_the_same():
    encoder = DeformableDETREncoder(32, 2, 4, 3, 2, 48)
    feats = [torch.randn(2, 32, *side) for side in SHAPES]
    masks = [torch.zeros(2, *side, dtype=torch.bool) for side in SHAPES]
    masks[0][:, :, -1] = True
    counted = []
    for given in (None, masks):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            encoder(feats, given)
        counted.append(counter.get_total_flops())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder.to('meta')([feat.to('meta') for feat in feats])
    counted.append(counter.get_total_flops())
    assert len(set(counted)) == 1


def test_mmdetections_deformable_detr_counts_as_ours():
    """On the CPU, as it reads the maps' sides out of tensors."""
    pytest.importorskip('mmdet')
    from mmengine.config import Config

    path = 'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py'
    from mmengine.hub import get_config

    backbone = dict(depth=18, base_channels=8)
    neck = dict(in_channels=[16, 32, 64])
    ours = Config.fromfile(ROOT / 'configs/deformable_detr/r50_50e_coco.py')
    complexities = []
    for cfg in (get_config(path), ours):
        cfg.merge_from_dict(dict(model=dict(backbone=backbone, neck=neck)))
        complexities.append(count(build(cfg, 'cpu'), (96, 128)))
    theirs, ours = complexities
    assert theirs.flops == ours.flops


def test_mask2former_counts_its_decode_head():
    pytest.importorskip('mmseg')
    from mmengine.config import Config

    cfg = Config.fromfile(ROOT / 'configs/mask2former/pvtv2_b2_160k_ade20k.py')
    complexity = count(cfg, (64, 96))
    head = complexity.part('decode_head')
    parts = ('pixel_decoder', 'transformer_decoder', 'mask_embed', 'cls_embed')
    inside = sum(head.part(name).flops for name in parts)
    queries, channels = 100, 256
    masks = 10 * queries * channels * 16 * 24
    assert head.flops == inside + masks
    assert complexity.flops == head.flops + complexity.part('backbone').flops
