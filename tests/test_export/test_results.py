"""Results in the original image, beside mmdet and mmseg."""

import mmcv
import numpy as np
import pytest
import torch
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from torch.nn.functional import interpolate
from torchvision.models.detection.roi_heads import expand_boxes, paste_masks_in_image

from mmattn.export import results
from mmattn.export.inputs import Prepared
from mmattn.export.metadata import Metadata
from mmattn.export.results import detections, paste_masks, segmentation

NAMES = ['cat', 'dog']


def metadata(task, **settings):
    return Metadata(task, [], [], [64, 96], **settings)


def prepared(size, original):
    return Prepared(np.zeros((3, *size), np.float32), original)


def test_masks_are_pasted_as_mmdet_pastes_them():
    generator = torch.Generator().manual_seed(0)
    size = (53, 75)
    start = torch.rand(40, 2, generator=generator) * torch.tensor([80.0, 60.0]) - 5
    sides = torch.rand(40, 2, generator=generator) ** 3 * 70 + 0.1
    boxes = torch.cat([start, start + sides], 1).clamp(min=0)
    boxes = boxes.minimum(torch.tensor([75.0, 53.0, 75.0, 53.0]))
    boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)]
    count = len(boxes)
    assert count > 30
    masks = torch.rand(count, 28, 28, generator=generator)
    expected = np.zeros((count, *size), bool)
    for i in range(count):
        pasted, region = _do_paste_mask(masks[i, None, None], boxes[i, None], *size)
        expected[(i, *region)] = pasted[0].numpy() >= 0.5
    found = paste_masks(masks.numpy(), boxes.numpy(), size)
    assert expected.any() and (found != expected).mean() < 1e-4


def test_masks_are_pasted_as_torchvision_pastes_them_into_whole_pixels():
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(40, 2, generator=generator) * 60 + 5
    sides = torch.rand(40, 2, generator=generator) ** 2 * 80 + 2
    boxes = torch.cat([start, start + sides], 1)
    masks, size = torch.rand(40, 28, 28, generator=generator), (153, 131)
    expected = paste_masks_in_image(masks[:, None], boxes, size)[:, 0].numpy() >= 0.5
    # torchvision adds a cell on each side, and cuts the sides to whole pixels.
    wide = expand_boxes(boxes, 30 / 28).long()
    margin = (wide[:, 2:] + 1 - wide[:, :2]) / 30
    whole = torch.cat([wide[:, :2] + margin, wide[:, 2:] + 1 - margin], 1)
    found = paste_masks(masks.numpy(), whole.numpy(), size)
    assert expected.any() and (found != expected).mean() < 1e-4
    outwards = (boxes - whole) * torch.tensor([1, 1, -1, -1])
    assert -0.05 < outwards.min() and 0.9 < outwards.max() <= 1


def test_boxes_without_area_give_no_pixel():
    boxes = [[3.5, 3, 3.5, 9], [9, 8, 4, 3], [-9, -9, -2, -2], [90, 0, 99, 5]]
    boxes = np.array(boxes, np.float32)
    with np.errstate(all='raise'):
        assert not paste_masks(np.ones((4, 28, 28)), boxes, (20, 30)).any()


def test_detections_are_in_the_original_image():
    dets = np.array([[[10, 5, 30, 20, 0.9], [0, 0, 4, 4, 0.3], [-1] * 5]], np.float32)
    labels = np.array([[1, 0, -1]])
    image = prepared((40, 60), (80, 30))  # half as high, twice as wide
    outputs = [dets[0], labels[0], np.ones((3, 28, 28), np.float32)]
    found = detections(outputs, image, metadata('detection', classes=NAMES))
    np.testing.assert_array_equal(found.boxes, [[5, 10, 15, 40], [0, 0, 2, 8]])
    np.testing.assert_array_equal(found.scores, dets[0, :2, 4])
    assert found.names == ['dog', 'cat'] and list(found.labels) == [1, 0]
    assert found.masks.shape == (2, 80, 30)
    assert found.masks[0, 10:40, 5:15].all() and found.masks[0].sum() == 300


@pytest.mark.parametrize('threshold, pixels', [(None, 16), (0.6, 0), (0.4, 16)])
def test_the_threshold_of_masks_is_that_of_the_file(threshold, pixels):
    outputs = [np.array([[4, 4, 8, 8, 0.9]], np.float32), np.array([0])]
    outputs.append(np.full((1, 28, 28), 0.5, np.float32))
    ours = metadata('detection', mask_threshold=threshold)
    found = detections(outputs, prepared((20, 20), (20, 20)), ours)
    assert found.masks.sum() == pixels and found.names == ['0']


def test_detections_of_any_score_are_kept():
    """The graph has compared the scores, with ATSS before multiplying by centerness."""
    outputs = [np.array([[0, 0, 9, 9, s] for s in (0.9, 1e-3)]), np.zeros(2, int)]
    found = detections(outputs, prepared((20, 20), (20, 20)), metadata('detection'))
    assert list(found.scores) == [0.9, 1e-3] and found.masks is None


@pytest.mark.parametrize(
    'original, align_corners, classes',
    [
        ((64, 96), False, 5),
        ((117, 50), True, 1),
        ((9, 201), True, 5),
        ((9, 201), False, 1),
        ((1, 1), True, 5),
    ],
)
def test_logits_are_resized_as_mmseg_resizes_them(
    original, align_corners, classes, monkeypatch
):
    monkeypatch.setattr(results, 'MAX_VALUES', 4000)  # several parts
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(classes, 64, 96, generator=generator)
    inside = logits[None, :, :48, :90]
    expected = interpolate(
        inside, original, mode='bilinear', align_corners=align_corners
    )[0]
    if classes == 1:
        expected = (expected.sigmoid() > 0.6)[0].long()
    else:
        expected = expected.argmax(0)
    ours = metadata(
        'segmentation', align_corners=align_corners, mask_threshold=0.6, classes=NAMES
    )
    image = prepared((48, 90), original)
    found = segmentation([logits.numpy()], image, ours)
    assert found.labels.shape == original
    assert (found.labels != expected.numpy()).mean() < 1e-3
    assert found.classes == NAMES


def test_labels_are_resized_to_the_nearest():
    labels = np.random.default_rng(0).integers(0, 9, (64, 96))
    ours = metadata('segmentation', palette=[[i, 2 * i, 0] for i in range(9)])
    found = segmentation([labels], prepared((48, 90), (31, 200)), ours)
    inside = labels[:48, :90].astype(np.uint8)
    expected = mmcv.imresize(inside, (200, 31), interpolation='nearest')
    np.testing.assert_array_equal(found.labels, expected)
    np.testing.assert_array_equal(found.colors()[..., 1], 2 * found.labels)
