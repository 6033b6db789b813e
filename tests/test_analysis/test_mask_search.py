"""The steps of the mask search: which heads the scores of a model mask."""

from operator import call

import pytest
import torch
from refusals import refuses

from mmattn.analysis.mask_search import assign, calibrate, initialize
from mmattn.models.layers.masked.masking import resolve_masking

OTHERS = 0.1, 0.9, 0.9, 0.0, 0.9, 0.9  # the scores of heads 1 and 2
HEAD_0 = 0.90, 0.66, 0.50, 0.36, 0.34, 0.00
LOCALITY = torch.tensor([HEAD_0, OTHERS, OTHERS]).T


def test_the_search_starts_with_sch1():
    masks = initialize(24)
    assert masks == [[0]] * 24
    assert resolve_masking(masks, 24, 3) == resolve_masking('sch1', 24, 3)
    masks[0].append(1)
    assert masks[1] == [0]


def test_head_0_decides_for_its_layer():
    assert assign(LOCALITY) == [[0, 1, 2], [0, 1, 2], [0], [0], [], []]
    assert assign(LOCALITY.tolist(), 0.4, 0.1) == [[0, 1, 2]] * 3 + [[0], [0], []]


@pytest.mark.parametrize(
    'score, masked',
    [(0.5, [0]), (0.25, [0]), (0.5 + 1e-9, [0, 1]), (0.25 - 1e-9, [])],
    ids=['at-high', 'at-low', 'above-high', 'below-low'],
)
def test_a_score_at_a_threshold_keeps_the_mask(score, masked):
    assert assign([[score, 0.0]], 0.5, 0.25) == [masked]


def test_only_fully_masked_layers_are_calibrated():
    masks = [[0, 1, 2], [0, 1, 2], [0], [0], []]
    locality = [[0.36, 0.34, 0.9], [0.1, 0.2, 0.3], [0.1, 0.9, 0.9], *[[0.9] * 3] * 2]
    assert calibrate(masks, locality) == [[0, 2], [], [0], [0], []]
    assert calibrate(masks, locality, 0.2) == [[0, 1, 2], [1, 2], [0], [0], []]
    assert masks[0] == [0, 1, 2]


test_what_is_wrong_is_said = refuses(
    call,
    (lambda: initialize(0), 'depth must be positive, got 0'),
    (lambda: assign(LOCALITY, 0.3, 0.6), 'low 0.6 and high 0.3'),
    (lambda: assign(LOCALITY, 65.0), 'high 65.0'),
    (lambda: assign(LOCALITY[:, 0]), r'\(layers, heads\), got \(6,\)'),
    (lambda: assign([[0.5, float('nan')]]), 'finite, got .*nan'),
    (lambda: calibrate([[0]], LOCALITY), '1 layers, but scores of 6 layers'),
    (lambda: calibrate([[0]], [[0.5]], -1.0), r'\[0, 1\], got -1.0'),
)
