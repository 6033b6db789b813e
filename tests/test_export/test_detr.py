"""Deformable DETR, ours and mmdet's, as a graph, a program and an ONNX file."""

import pytest
import torch
from export_checks import OnnxSession, decomposed
from torch import nn
from torch.testing import assert_close

pytest.importorskip('mmdet')

from mmcv.cnn.bricks.transformer import FFN, MultiheadAttention
from mmcv.ops import MultiScaleDeformableAttention
from mmdet.models.layers import LearnedPositionalEncoding, SinePositionalEncoding
from mmengine.registry import MODELS as MMENGINE_MODELS
from small_deformable_detr import (
    FORMS,
    HEAD,
    IMAGES,
    SHAPES,
    config,
    detector,
    images,
    mmdet_config,
    mmdet_detector,
    samples,
)

from mmattn.export.errors import ExportError
from mmattn.export.graphs.detr import DeformableDETR
from mmattn.registry import MODELS

each_form = pytest.mark.parametrize('form', FORMS)
DETECTORS = {'mmattn': detector, 'mmdet': mmdet_detector}
each_detector = pytest.mark.parametrize('build', DETECTORS.values(), ids=DETECTORS)
SOFTMAX = HEAD | dict(loss_cls=dict(type='mmdet.CrossEntropyLoss'))


def case(model, count=2, shapes=SHAPES):
    """Return a graph, its inputs, and the detections that `predict` returns."""
    model = model.requires_grad_(False).eval()
    x, given = images(torch.float32)[:count], samples(shapes, torch.float32)[:count]
    model.predict(x, given, rescale=False)
    found = [sample.pred_instances for sample in given]
    dets = [torch.cat([x.bboxes, x.scores[:, None]], dim=-1) for x in found]
    labels = torch.stack([x.labels for x in found])
    return DeformableDETR(model).eval(), (x, torch.tensor(shapes)[:count]), dets, labels


def check(outputs, dets, labels):
    assert_close(outputs[0][..., :4], torch.stack(dets)[..., :4], rtol=1e-5, atol=1e-4)
    assert_close(outputs[0][..., 4], torch.stack(dets)[..., 4], rtol=1e-5, atol=1e-6)
    assert torch.equal(outputs[1], labels)


@each_form
@each_detector
def test_graph_predicts_as_the_detector(build, form):
    graph, inputs, *expected = case(build(form))
    check(graph(*inputs), *expected)
    assert expected[0][0].shape == (6, 5)


def test_position_offset_of_mmdet():
    cfg = mmdet_config('one-stage')['positional_encoding'] | dict(offset=0.25)
    graph, inputs, *expected = case(mmdet_detector(positional_encoding=cfg))
    assert graph.encoder.position_offset == 0.25
    check(graph(*inputs), *expected)


def test_without_encoder_and_neck():
    """The neck may encode the maps, and the backbone may have what a neck does."""
    model = detector(encoder=None)
    model.backbone = nn.Sequential(model.backbone, model.neck)
    del model.neck
    graph, inputs, *expected = case(model)
    check(graph(*inputs), *expected)


def test_head_with_softmax_and_no_limit():
    model = detector(bbox_head=SOFTMAX, test_cfg={})
    for branch in model.bbox_head.cls_branches:
        branch.bias.data[-1] = 2  # background often has the highest score
    graph, inputs, *expected = case(model)
    check(graph(*inputs), *expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    'build, form', [(detector, 'two-stage'), (mmdet_detector, 'refine')]
)
def test_program_and_onnx_file(build, form):
    graph, inputs, *expected = case(build(form))
    check(decomposed(graph, inputs)(*inputs), *expected)
    session = OnnxSession(graph, inputs)
    check(session(*inputs), *expected)
    # Padding is an input, not a constant of the graph.
    sizes = torch.tensor([IMAGES, (61, 99)])
    found, wanted = session(inputs[0], sizes), graph(inputs[0], sizes)
    check(found, list(wanted[0]), wanted[1])


def transformer_layers(**changes):
    """Return mmdet's config with changes in the decoder's layers."""
    cfg = mmdet_config('one-stage')
    for name, values in changes.items():
        cfg['decoder']['layer_cfg'][name].update(values)
    return cfg


class OtherHead(MMENGINE_MODELS.get('mmdet.DeformableDETRHead')):
    """Might predict in another way."""


GELU = dict(act_cfg=dict(type='GELU'))
WARM = dict(num_feats=16, normalize=True, offset=-0.5, temperature=20)
REFUSED = [
    (transformer_layers(ffn_cfg=GELU), 'GELU in the transformer'),
    (transformer_layers(self_attn_cfg=dict(num_heads=2)), 'num_heads, got 2 and 4'),
    (transformer_layers(ffn_cfg=dict(add_identity=False)), 'True only, got False'),
    (mmdet_config('one-stage') | dict(positional_encoding=WARM), 'only, got 20'),
    (config(bbox_head=HEAD | dict(type=OtherHead)), 'OtherHead cannot be'),
]


@pytest.mark.parametrize('cfg, message', REFUSED, ids=[said for _, said in REFUSED])
def test_refusals(cfg, message):
    with pytest.raises(ExportError, match=message):
        DeformableDETR(MODELS.build(cfg))


SETTINGS = [
    (FFN, 'num_fcs', 3),
    (MultiScaleDeformableAttention, 'batch_first', False),
    (MultiheadAttention, 'batch_first', False),
    (nn.MultiheadAttention, 'add_zero_attn', True),
    (nn.LayerNorm, 'eps', 1e-6),
    (nn.LayerNorm, 'elementwise_affine', False),
    (SinePositionalEncoding, 'normalize', False),
    (SinePositionalEncoding, 'scale', 1.0),
    (SinePositionalEncoding, 'eps', 1e-5),
]


def test_settings_that_our_transformer_lacks():
    model = mmdet_detector()
    parts = model.encoder, model.decoder, model.positional_encoding
    for kind, name, value in SETTINGS:
        modules = [x for part in parts for x in part.modules() if type(x) is kind]
        message = f'{kind.__name__} of a Deformable DETR .*{name}=.* got {value}'
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modules[-1], name, value)
            with pytest.raises(ExportError, match=message):
                DeformableDETR(model)


def test_other_positions():
    model = mmdet_detector()
    model.positional_encoding = LearnedPositionalEncoding(16)
    with pytest.raises(ExportError, match='LearnedPositionalEncoding cannot be'):
        DeformableDETR(model)


@pytest.mark.parametrize('limit', [0, 56])
def test_more_or_fewer_detections_than_predictions(limit):
    graph = DeformableDETR(detector(test_cfg=dict(max_per_img=limit)).eval())
    with pytest.raises(ExportError, match=f'from 1 to 55.*got {limit}'):
        graph(images(torch.float32), torch.tensor(SHAPES))
