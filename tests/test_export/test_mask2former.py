"""Mask2Former with our pixel decoder, as a graph, a program and an ONNX file."""

import copy

import pytest
import torch
from export_checks import OnnxSession, decomposed
from torch.testing import assert_close

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')

from config_files import load
from mmengine.registry import MODELS, DefaultScope
from small_deformable_detr import with_random_weights

from mmattn.export.errors import ExportError
from mmattn.export.graphs import graph_of

CLASSES, QUERIES, WIDTH = 5, 7, 32


def config():
    """Return the config of PVTv2-b2, made small."""
    model = copy.deepcopy(load('mask2former/pvt_v2_b2_160k_ade20k').model)
    model.backbone = dict(type='mmattn.PVTv2', arch='b0')
    head = model.decode_head
    head.update(in_channels=[32, 64, 160, 256], feat_channels=WIDTH, out_channels=WIDTH)
    head.update(num_classes=CLASSES, num_queries=QUERIES)
    head.loss_cls.class_weight = [1.0] * (CLASSES + 1)
    head.positional_encoding.num_feats = WIDTH // 2
    encoder, decoder = head.pixel_decoder.encoder, head.transformer_decoder
    encoder.num_layers = decoder.num_layers = 2
    encoder.layer_cfg.self_attn_cfg.num_heads = 4
    encoder.layer_cfg.ffn_cfg.feedforward_channels = 48
    for attention in ('self_attn_cfg', 'cross_attn_cfg'):
        decoder.layer_cfg[attention].update(embed_dims=WIDTH, num_heads=4)
    decoder.layer_cfg.ffn_cfg.update(embed_dims=WIDTH, feedforward_channels=48)
    return model


def build(cfg):
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = with_random_weights(MODELS.build(cfg))
    return model.requires_grad_(False).eval()


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('shape', [(2, 3, 64, 96), (1, 3, 61, 93)], ids=str)
def test_graph_predicts_as_the_segmentor(shape):
    model, x = build(config()), images(*shape)
    expected = model.predict(x)
    (scores,) = graph_of(model)(x)
    (labels,) = graph_of(model, output='labels')(x)
    for i, sample in enumerate(expected):
        assert_close(scores[i], sample.seg_logits.data, rtol=1e-5, atol=1e-5)
        assert torch.equal(labels[i], sample.pred_sem_seg.data[0])
    assert scores.shape == (shape[0], CLASSES, *shape[2:])


@pytest.mark.slow
def test_program_and_onnx_file():
    graph, x = graph_of(build(config())), images(2, 3, 61, 93)
    (expected,) = graph(x)
    for run in (decomposed(graph, (x,)), OnnxSession(graph, (x,))):
        (found,) = run(x)
        assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_another_pixel_decoder_is_refused():
    cfg = config()
    decoder = cfg.decode_head.pixel_decoder
    decoder.update(type='mmdet.MSDeformAttnPixelDecoder', act_cfg=dict(type='ReLU'))
    decoder.norm_cfg = dict(type='GN', num_groups=32)
    decoder.positional_encoding = dict(num_feats=WIDTH // 2, normalize=True)
    layer = decoder.encoder.layer_cfg
    layer.self_attn_cfg.update(embed_dims=WIDTH, batch_first=True)
    layer.ffn_cfg.update(embed_dims=WIDTH)
    with pytest.raises(ExportError, match='the pixel decoder MSDeformAttnPixelDecoder'):
        graph_of(build(cfg))
