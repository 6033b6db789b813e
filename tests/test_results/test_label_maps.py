"""Label maps and classes of images."""

import sys

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks

from mmattn.results import Classification, Segmentation, coco_document
from mmattn.results.names import label_type

CLASSES = ['water', 'forest', 'ice']
PALETTE = [[0, 0, 255], [0, 255, 0], [255, 255, 255]]


@pytest.fixture
def found():
    labels = np.zeros((40, 60), np.uint8)
    labels[10:20, 5:45] = 2
    return Segmentation(labels, CLASSES, PALETTE, 'image.png')


def test_what_occurs(found):
    assert found.present() == [0, 2] and found.size == (40, 60)
    assert found.shares() == {'water': 2000 / 2400, 'ice': 400 / 2400}
    found.classes = None
    assert list(found.shares()) == ['0', '2']


@pytest.mark.parametrize('count, kind', [(256, np.uint8), (257, np.uint16)])
def test_the_type_of_labels_holds_the_largest(count, kind):
    assert label_type(count) is kind


def test_colors(found):
    colors = found.colors()
    assert colors.dtype == np.uint8 and colors[0, 0].tolist() == [0, 0, 255]
    assert (colors[10:20, 5:45] == 255).all()
    found.palette = None
    with pytest.raises(ValueError, match='no palette'):
        found.colors()


def test_drawings(found):
    image = np.full((40, 60, 3), 100, np.uint8)
    drawn = found.draw(image, opacity=0.5, with_text=False)
    assert drawn[15, 20].tolist() == [177, 177, 177]
    np.testing.assert_array_equal(found.draw(image, opacity=0, with_text=False), image)
    with_legend = found.draw(image, opacity=0)
    assert (with_legend[3:, 3:] == [255, 255, 255]).all(2).any()  # ice, and text
    found.palette = None
    assert (found.draw(image, with_text=False)[0, 0] != drawn[0, 0]).any()
    with pytest.raises(ValueError, match='`opacity` must be from 0 to 1, got 2'):
        found.draw(image, opacity=2)
    with pytest.raises(ValueError, match='must be the original one'):
        found.draw(image[:30])


def test_pictures_are_read_from_the_source(found, tmp_path):
    image = np.full((40, 60, 3), 100, np.uint8)
    Image.fromarray(image).save(tmp_path / 'image.png')
    found.source = str(tmp_path / 'image.png')
    np.testing.assert_array_equal(found.draw(), found.draw(image))


def test_coco_has_an_annotation_for_each_class(found):
    document = coco_document([found])
    water, ice = document['annotations']
    assert ice['bbox'] == [5, 10, 40, 10] and ice['area'] == 400
    assert water['bbox'] == [0, 0, 60, 40] and 'score' not in ice
    np.testing.assert_array_equal(
        coco_masks.decode(ice['segmentation']), found.labels == 2
    )
    names = {each['id']: each['name'] for each in document['categories']}
    assert names[ice['category_id']] == 'ice' and names[water['category_id']] == 'water'
    ids = dict(water=30, forest=31, ice=32)
    assert [each['category_id'] for each in found.to_coco(1, ids)] == [30, 32]


def test_supervision_gets_a_mask_for_each_class(found):
    objects = found.to_supervision()
    np.testing.assert_array_equal(objects.class_id, [0, 2])
    assert objects.mask[1].sum() == 400 and objects.xyxy[1, :2].tolist() == [5, 10]


def test_best_classes():
    found = Classification(np.array([0.1, 0.7, 0.2], np.float32), ['a', 'b', 'c'])
    assert [name for name, _ in found.top(2)] == ['b', 'c']
    assert found.top(2)[0][1] == pytest.approx(0.7) and found.label == 1
    assert Classification(found.scores).top(1)[0][0] == '1'
    classes, scores = found.to_supervision().get_top_k(1)
    assert classes.tolist() == [1] and scores[0] == pytest.approx(0.7)


def test_classes_are_written_on_images():
    found = Classification(np.array([0.1, 0.7, 0.2], np.float32), ['a', 'b', 'c'])
    image = np.full((80, 90, 3), 100, np.uint8)
    drawn = found.draw(image, count=2)
    assert (drawn != image).any() and (drawn[60:] == 100).all()


def test_what_to_install_is_said(found, monkeypatch):
    monkeypatch.setitem(sys.modules, 'supervision', None)
    with pytest.raises(ImportError, match=r'pip install "mmattn\[predict\]"'):
        found.to_supervision()
    monkeypatch.setitem(sys.modules, 'pycocotools.mask', None)
    with pytest.raises(ImportError, match='pip install pycocotools'):
        found.to_coco()
