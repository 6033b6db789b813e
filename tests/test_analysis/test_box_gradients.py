"""Gradients of a DETR's boxes against finite differences and a known function."""

from functools import partial

import pytest
import torch
from refusals import refuses
from small_deformable_detr import detector, mmdet_detector, samples
from torch import nn

from mmattn.analysis.box_gradients import ITEMS, box_gradients


class Known(nn.Module):
    """Two queries, whose outputs are known functions of the image's pixels.

    Query 0 has the box (a, b, c, d) and the logit e of its class 1; query 1 is constant
    with a lower score.
    """

    # Channel, row and column.
    PLACES = (0, 0, 1), (1, 2, 0), (2, 3, 3), (0, 2, 2), (1, 1, 1)
    WEIGHTS = 0.1, 0.2, 0.3, 0.4, 0.5

    def forward(self, image, samples, mode):
        assert mode == 'tensor' and samples is None
        *box, logit = (
            weight * image[0, c, y, x]
            for (c, y, x), weight in zip(self.PLACES, self.WEIGHTS, strict=True)
        )
        logits = torch.stack([logit - 9, logit, logit * 0 - 3, logit * 0 - 4])
        boxes = torch.stack([*box, *[logit * 0 + 0.5] * 4])
        other = torch.zeros_like(logits)
        layers = torch.stack([other, logits]).view(2, 1, 2, 2)
        return layers, torch.stack([boxes * 0, boxes]).view(2, 1, 2, 4)


def test_norms_are_those_of_a_known_function():
    image = torch.ones(1, 3, 4, 6, dtype=torch.float64)
    first, second = box_gradients(Known(), image, count=2)
    assert (first.query, first.label, second.query, second.label) == (0, 1, 1, 0)
    score = 1 / (1 + torch.tensor(-0.5, dtype=torch.float64).exp())
    assert first.score == pytest.approx(float(score))
    for row, norm in enumerate(first.norms):
        _, y, x = Known.PLACES[row]
        slope = score * (1 - score) if ITEMS[row] == 'class' else 1
        expected = torch.zeros(4, 6, dtype=torch.float64)
        expected[y, x] = Known.WEIGHTS[row] * slope
        torch.testing.assert_close(norm, expected)
    # x 0.1, y 0.2, width 0.3 and height 0.4 of 6 x 4 pixels
    assert first.box == pytest.approx((-0.3, 0.0, 1.5, 1.6))
    assert second.norms.eq(0).all() and not image.requires_grad


@pytest.mark.parametrize('form', ['one-stage', 'two-stage'])
def test_the_packages_detector_has_the_same_gradients(form):
    """It requires samples; these have padding."""
    torch.manual_seed(0)
    peer = mmdet_detector(form).double().eval()
    ours = detector(form).double().eval()
    ours.load_state_dict(peer.state_dict())
    image, (sample, _) = torch.randn(1, 3, 96, 128, dtype=torch.float64), samples()
    (expected,) = box_gradients(peer, image, [sample])
    (found,) = box_gradients(ours, image, [sample])
    assert (found.query, found.label) == (expected.query, expected.label)
    # mmdet computes sine positions in float32.
    assert found.box == pytest.approx(expected.box, abs=1e-3)
    bound = 1e-3 * float(expected.norms.max())
    torch.testing.assert_close(found.norms, expected.norms, rtol=0, atol=bound)


test_errors = refuses(
    partial(box_gradients, Known()),
    (dict(image=torch.ones(2, 3, 4, 6)), r'got \(2, 3, 4, 6\)'),
    (dict(image=torch.ones(1, 3, 4, 6), count=3), 'between 1 and 2, got 3'),
    (dict(image=torch.ones(1, 3, 4, 6), count=0), 'between 1 and 2, got 0'),
)
