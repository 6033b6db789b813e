"""Numbers that the configs of mmattn data convert follow from."""

import numpy as np
import pytest

from mmattn.data import own_config
from mmattn.errors import UserError


def test_large_images_are_shrunk_and_anchors_follow_the_objects():
    for sizes, factor in (([(800, 1333), (10, 10)], 1.0), ([(1600, 1000)], 0.8)):
        assert own_config.shrinking(sizes)[0] == factor
    for sides, scale in (([45.3], 4), ([3, 5], 2), ([90, 91], 8), ([900], 16)):
        assert own_config.anchor_scale(np.array(sides)) == scale


def test_small_objects_keep_large_images_as_they_are():
    sizes = [(2472, 2299)]
    assert own_config.shrinking(sizes, middle=14)[0] == 1
    assert own_config.shrinking(sizes, middle=200)[0] == 0.348
    assert own_config.shrinking(sizes, middle=14, wish=0.5)[0] == 0.5
    with pytest.raises(UserError, match='--factor must be above 0'):
        own_config.shrinking(sizes, wish=-1)
    warning = own_config.of_small_objects(np.array([11, 14, 18]), 1.0, 2472)
    assert '12 to 16 pixels' in warning and '--tile 400 cuts them' in warning
    assert '--factor 2 enlarges' in warning
    assert own_config.of_small_objects(np.array([19, 20, 21]), 1.0, 2472) is None


def test_room_for_574_objects():
    found = own_config.limits(574, 90)
    assert found['proposals'] >= 3 * 574 and found['max_per_img'] == 2 * 574
    assert own_config.limits(3, 3) == dict(
        proposals=500, max_per_img=100, train_pre=1000, train_proposals=500
    )
