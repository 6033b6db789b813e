"""Count detectors, and the modules built on multi-scale deformable attention."""

from math import ceil
from pathlib import Path

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.hub import get_config
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count
from mmattn.analysis.flops import build

ROOT = Path(__file__).parents[2]
C, FEEDFORWARD, HEADS, POINTS, QUERIES = 256, 1024, 8, 4, 300


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


def test_deformable_detr_counts_as_computed_by_hand():
    cfg = Config.fromfile(ROOT / 'configs/deformable_detr/r50_50e_coco.py')
    complexity = count(cfg, (800, 1333))
    S, expected = analytic((800, 1333))
    assert S == 22223
    assert {name: complexity.part(name).flops for name in expected} == expected
    assert complexity.flops / 1e9 == pytest.approx(206.7, abs=0.05)


def test_mmdetections_deformable_detr_counts_as_ours():
    path = 'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py'
    backbone = dict(depth=18, base_channels=8)
    neck = dict(in_channels=[16, 32, 64])
    ours = Config.fromfile(ROOT / 'configs/deformable_detr/r50_50e_coco.py')
    complexities = []
    for cfg in (get_config(path), ours):
        cfg.merge_from_dict(dict(model=dict(backbone=backbone, neck=neck)))
        complexities.append(count(build(cfg, 'cpu'), (96, 128)))
    theirs, ours = complexities
    assert theirs.flops == ours.flops


def test_dino_counts_the_same_without_numbers():
    """It reads the maps' sides out of tensors."""
    cfg = Config.fromfile(ROOT / 'configs/demo/dino_ivit_n_hela.py')
    shape = (96, 128)
    computed = count(build(cfg, 'cpu'), shape)
    assert count(cfg, shape) == computed
    assert computed.part('encoder').flops > 0 < computed.part('memory_trans_fc').flops


def test_mask2former_counts_its_decode_head():
    cfg = Config.fromfile(ROOT / 'configs/mask2former/pvt_v2_b2_160k_ade20k.py')
    complexity = count(cfg, (64, 96))
    head = complexity.part('decode_head')
    parts = ('pixel_decoder', 'transformer_decoder', 'mask_embed', 'cls_embed')
    inside = sum(head.part(name).flops for name in parts)
    queries, channels = 100, 256
    masks = 10 * queries * channels * 16 * 24
    assert head.flops == inside + masks
    assert complexity.flops == head.flops + complexity.part('backbone').flops


def test_learned_proposals_count_as_they_are_executed():
    cfg = Config.fromfile(ROOT / 'configs/sparse_rcnn/pvt_v2_b2_3x_coco.py')
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


def test_detector_runs_as_many_regions_as_it_keeps():
    cfg = Config.fromfile(ROOT / 'configs/demo/mask_rcnn_ivit_n_hela.py')
    before = count(cfg, (256, 256))
    cfg.model.test_cfg.rpn.max_per_img *= 2
    cfg.model.test_cfg.rcnn.max_per_img *= 3
    after = count(cfg, (256, 256))
    for part, factor in (('bbox_head', 2), ('mask_head', 3)):
        old, new = (c.part(f'roi_head.{part}') for c in (before, after))
        assert new.flops == factor * old.flops > 0
    assert after.part('backbone') == before.part('backbone')


def test_other_two_stage_detectors_are_refused():
    with pytest.raises(NotImplementedError, match='HybridTaskCascadeRoIHead'):
        count(get_config('mmdet::htc/htc_r50_fpn_1x_coco.py'), (256, 256))
