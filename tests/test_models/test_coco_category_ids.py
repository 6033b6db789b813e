"""Detectors for COCO's 91 category ids, made into those for its 80 classes."""

import pytest
import torch
from mmdet.datasets import CocoDataset
from small_deformable_detr import HEAD, config, detector, images, samples
from torch.testing import assert_close
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights

from mmattn.registry import MODELS
from mmattn.weights.layouts.coco_classes import CATEGORY_IDS, OUTPUTS, with_coco_classes
from mmattn.weights.layouts.deformable_detr import to_official_state_dict

IDS = list(CATEGORY_IDS)
CLASSES = len(CocoDataset.METAINFO['classes'])


def head(classes):
    return HEAD | dict(num_classes=classes)


def test_category_ids_are_those_of_the_classes_in_order():
    """torchvision's detectors have an output for each id, and its name."""
    names = FasterRCNN_ResNet50_FPN_Weights.COCO_V1.meta['categories']
    assert len(names) == OUTPUTS
    classes = [name.replace(' ', '') for name in CocoDataset.METAINFO['classes']]
    assert [names[i].replace(' ', '') for i in IDS] == classes
    assert {names[i] for i in range(OUTPUTS) if i not in IDS} == {
        '__background__',
        'N/A',
    }


@torch.no_grad()
@pytest.mark.parametrize('form', ['one-stage', 'two-stage'])
def test_predictions_are_those_for_the_category_ids(form):
    wide = detector(form, bbox_head=head(OUTPUTS)).double().eval()
    ours = MODELS.build(config(form, bbox_head=head(CLASSES))).double().eval()
    ours.load_state_dict(with_coco_classes(to_official_state_dict(wide.state_dict())))
    expected, out = (
        model.forward_transformer(model.extract_feat(images()), samples())
        for model in (wide, ours)
    )
    exact = dict(rtol=0, atol=1e-12)
    assert_close(out.references[0], expected.references[0], **exact)
    (scores, boxes), (expected_scores, expected_boxes) = (
        model.bbox_head(result.hidden_states, result.references)
        for model, result in ((ours, out), (wide, expected))
    )
    assert_close(boxes, expected_boxes, **exact)
    assert_close(scores, expected_scores[..., IDS], **exact)
    if form == 'two-stage':
        kept = [0, *IDS[1:]]
        assert_close(out.enc_class, expected.enc_class[..., kept], **exact)
        first, second = expected.enc_class[..., :2].topk(3, dim=1).indices.unbind(-1)
        assert not torch.equal(first, second)  # id 1 would choose other queries


def test_other_numbers_of_classes_are_refused():
    weights = detector(bbox_head=head(90)).state_dict()
    with pytest.raises(ValueError, match=r'have 91 outputs, got \[90\]'):
        with_coco_classes(weights)
