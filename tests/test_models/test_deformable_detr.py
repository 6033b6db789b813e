"""The detector DeformableDETR: beside mmdet's, its size, its settings and its use."""

import copy

import pytest
import small_deformable_detr as small
import torch
from mmengine.structures import InstanceData
from refusals import refuses
from torch.testing import assert_close

from mmattn.registry import MODELS
from mmattn.weights.layouts.deformable_detr import (
    convert_state_dict,
    to_official_state_dict,
)

each_form = pytest.mark.parametrize('form', small.FORMS)
FULL = (small.IMAGES, small.IMAGES)  # shapes of images without padding


@each_form
def test_outputs_losses_and_predictions_are_those_of_mmdet(form):
    peer = small.mmdet_detector(form).double()
    ours = MODELS.build(small.config(form)).double()
    ours.load_state_dict(peer.state_dict())
    x = small.images()
    for shapes in (small.SHAPES, FULL):  # in training mode: that has no dropout here
        given = small.samples(shapes)
        expected, found = peer.loss(x, given), ours.loss(x, given)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(found[name], value, rtol=1e-5, atol=0, msg=name)
        # mmdet computes sine positions in float32.
        ours.eval(), peer.eval()
        for a, b in zip(ours._forward(x, given), peer._forward(x, given), strict=True):
            assert_close(a, b, rtol=0, atol=1e-5)
        ours.train(), peer.train()
    ours.eval(), peer.eval()
    for rescale in (True, False):
        ours_given, peer_given = small.samples(), small.samples()
        ours.predict(x, ours_given, rescale)
        peer.predict(x, peer_given, rescale)
        for a, b in zip(ours_given, peer_given, strict=True):
            a, b = a.pred_instances, b.pred_instances
            assert len(a) == 6
            assert torch.equal(a.labels, b.labels)
            assert_close(a.scores, b.scores, rtol=0, atol=1e-5)
            assert_close(a.bboxes, b.bboxes, rtol=1e-4, atol=1e-3)


def test_biases_that_mmdet_has_not_are_zero():
    """In the detector and in the official layout, which has them always."""
    weights = MODELS.build(small.mmdet_config('one-stage')).state_dict()
    ours = small.detector()
    ours.load_state_dict(weights)
    biases = [x for name, x in ours.named_parameters() if name.endswith('conv.bias')]
    assert len(biases) == 4 and not torch.cat(biases).any()
    official = to_official_state_dict(weights)
    assert official.keys() == to_official_state_dict(ours.state_dict()).keys()
    assert not official['input_proj.3.0.bias'].any()
    without = MODELS.build(small.config(neck=small.neck(bias='auto')))
    without.load_state_dict(weights)
    converted = convert_state_dict(weights)
    assert converted.keys() == without.state_dict().keys()


@each_form
def test_every_trainable_parameter_learns(form):
    model = small.detector(form).train()
    given = small.samples(dtype=torch.float32)
    given[1].gt_instances = InstanceData(
        bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
    )
    losses = model.loss(small.images(torch.float32), given)
    names = {'loss_cls', 'loss_bbox', 'loss_iou'}
    names |= {f'd{i}.{name}' for i in range(small.LAYERS - 1) for name in names}
    if form == 'two-stage':
        names |= {'enc_loss_cls', 'enc_loss_bbox', 'enc_loss_iou'}
    assert losses.keys() == names
    sum(losses.values()).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


class TwoMaps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, small.WIDTH, 16, 16)

    def forward(self, x):
        x = self.patches(x)
        return x, x[..., ::2, ::2]


def test_without_a_neck_the_maps_are_the_backbones(monkeypatch):
    monkeypatch.setitem(MODELS.module_dict, 'TwoMaps', TwoMaps)
    cfg = small.config(backbone=dict(type='mmattn.TwoMaps'), neck=None)
    cfg['encoder']['num_levels'] = cfg['decoder']['num_levels'] = 2
    model = small.detector(**cfg).eval()
    assert not model.with_neck
    x = small.images(torch.float32)
    out = model.forward_transformer(model.backbone(x), small.samples())
    expected = model.bbox_head(out.hidden_states, out.references)
    for a, b in zip(model._forward(x, small.samples()), expected, strict=True):
        assert torch.equal(a, b)


THREE_LEVELS = dict(
    type='mmattn.DeformableDETREncoder', embed_dims=small.WIDTH, num_levels=3
)
test_settings_that_contradict_each_other_are_refused = refuses(
    lambda **changes: MODELS.build(small.config(**changes)),
    (dict(decoder=None), 'requires a decoder, got None'),
    (dict(bbox_head=small.HEAD | dict(num_pred_layer=6)), 'num_pred_layer of'),
    (dict(bbox_head=small.HEAD | dict(embed_dims=64)), "embed_dims: {.*'head': 64}"),
    (dict(encoder=THREE_LEVELS), "num_levels: {'encoder': 3, 'decoder': 4}"),
)


def test_maps_that_do_not_fit_are_refused():
    model = MODELS.build(small.config(neck=small.neck(num_outs=3)))
    with pytest.raises(ValueError, match=r'needs 4 maps of shape \(B, 32, H, W\)'):
        model._forward(small.images(torch.float32))


def test_configs_are_left_as_they_are():
    cfg = small.config()
    before = copy.deepcopy(cfg)
    MODELS.build(cfg)
    assert cfg == before
