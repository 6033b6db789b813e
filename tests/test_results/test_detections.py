"""Objects as arrays, as supervision's, as COCO's and drawn."""

import copy
import io
import json
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO

from mmattn.images.draw import class_colors
from mmattn.results import Detections, coco_document
from mmattn.results.coco import encode_mask

SIZE = (40, 60)


@pytest.fixture
def found():
    boxes = [[5, 10, 25, 30], [30, 4, 50, 20], [0, 0, 4, 4]]
    masks = np.zeros((3, *SIZE), bool)
    masks[0, 12:28, 6:20] = True
    masks[1, 4:20, 30:50] = True
    boxes, scores = (np.array(x, np.float32) for x in (boxes, [0.9, 0.5, 0.2]))
    labels, names = np.array([0, 1, 0]), ['cat', 'dog', 'cat']
    return Detections(boxes, scores, labels, names, masks, 'image.png', SIZE)


def test_above(found):
    kept = found.above(0.5)
    assert len(kept) == 2 and kept.names == ['cat', 'dog']
    np.testing.assert_array_equal(kept.boxes, found.boxes[:2])
    np.testing.assert_array_equal(kept.masks, found.masks[:2])
    assert kept.source == 'image.png' and kept.size == SIZE


@pytest.mark.parametrize(
    'index, kept',
    [
        ([2, 0], [2, 0]),
        (slice(1, None), [1, 2]),
        (np.array([True, False, True]), [0, 2]),
    ],
    ids=['list', 'slice', 'mask'],
)
def test_objects_are_selected_by_index(found, index, kept):
    some = found[index]
    np.testing.assert_array_equal(some.scores, found.scores[kept])
    assert some.names == [found.names[i] for i in kept]
    with pytest.raises(IndexError, match='list of objects, got 1'):
        found[1]


@pytest.mark.parametrize('at', [(0, 0), (3, 5), (7, 8)], ids=str)
@pytest.mark.parametrize('fill', [0, 0.5, 1])
def test_a_crop_is_encoded_as_the_whole_mask(at, fill):
    rows, columns = 9 - at[1], 8 - at[0]
    crop = np.random.default_rng(0).random((rows, columns)) < fill
    whole = np.zeros((9, 8), bool)
    whole[at[1] :, at[0] :] = crop
    assert encode_mask(crop, at, (9, 8)) == encode_mask(whole)


def test_what_is_drawn_follows_above(found):
    image = np.zeros((*SIZE, 3), np.uint8)

    def drawn(found, **options):
        return found.draw(image, with_text=False, **options)[0, 1].any()

    assert not drawn(found) and drawn(found, score=0.2) and drawn(found.above(0.1))
    assert not drawn(found.above(0.1), score=0.5)


def test_supervision_gets_all(found):
    import supervision as sv

    objects = found.to_supervision()
    np.testing.assert_array_equal(objects.xyxy, found.boxes)
    np.testing.assert_array_equal(objects.mask, found.masks)
    np.testing.assert_array_equal(objects.confidence, found.scores)
    np.testing.assert_array_equal(objects.class_id, [0, 1, 0])
    assert list(objects.data['class_name']) == found.names
    assert len(objects[objects.confidence > 0.4]) == 2
    assert isinstance(found.above(0.95).to_supervision(), sv.Detections)


def test_coco_reads_the_document(found, tmp_path):
    other = found[[1]]
    other.source = None
    document = coco_document([found, other], ['cat', 'dog', 'owl'])
    path = tmp_path / 'predictions.json'
    path.write_text(json.dumps(document))
    with redirect_stdout(io.StringIO()):
        coco = COCO(path)
        loaded = coco.loadRes(copy.deepcopy(document['annotations']))
    assert [image['file_name'] for image in coco.imgs.values()] == ['image.png', '2']
    assert {each['name'] for each in coco.cats.values()} == {'cat', 'dog', 'owl'}
    assert len(loaded.getAnnIds(imgIds=1)) == 3 and len(loaded.anns) == 4
    assert [each['id'] for each in document['annotations']] == [1, 2, 3, 4]
    first, *_, last = document['annotations']
    assert first['bbox'] == [5, 10, 20, 20] and first['category_id'] == 1
    assert coco.cats[last['category_id']]['name'] == 'dog' and last['image_id'] == 2
    np.testing.assert_array_equal(
        coco_masks.decode(first['segmentation']), found.masks[0]
    )
    assert first['area'] == 16 * 14 and first['score'] == pytest.approx(0.9)


def test_category_ids_are_those_of_a_data_set(found):
    entries = found.to_coco(7, {'cat': 17, 'dog': 18})
    assert [each['category_id'] for each in entries] == [17, 18, 17]
    assert {each['image_id'] for each in entries} == {7}


def test_boxes_without_masks_have_their_area(found):
    found.masks = None
    entry = found.to_coco()[1]
    assert entry['area'] == 20 * 16 and 'segmentation' not in entry


def test_drawings(photograph):
    """Masks are filled, boxes have a frame, and all else is the photograph."""
    image, masks = photograph.image.copy(), photograph.masks
    scores = np.linspace(1, 0.1, 19, dtype=np.float32)
    labels = np.arange(19)
    found = Detections(photograph.boxes, scores, labels, photograph.names, masks)
    drawn = found.draw(image, with_text=False)
    assert drawn.shape == image.shape and (image == photograph.image).all()
    changed = (drawn != image).any(2)
    frames = np.zeros_like(changed)
    shown = scores >= 0.3
    for x1, y1, x2, y2 in photograph.boxes[shown].astype(int):
        assert changed[y1, x1:x2].mean() > 0.99 and changed[y1:y2, x1].mean() > 0.99
        outer, inner = np.zeros_like(changed), np.zeros_like(changed)
        outer[max(0, y1 - 4) : y2 + 4, max(0, x1 - 4) : x2 + 4] = True
        inner[y1 + 4 : y2 - 4, x1 + 4 : x2 - 4] = True
        frames |= outer & ~inner
    filled = masks[shown].any(0)
    assert changed[filled].mean() > 0.99 and not changed[~filled & ~frames].any()
    lower = found.draw(image, score=0.1, with_text=False)
    assert (lower != image).any(2)[masks.any(0)].mean() > 0.99
    assert (found.draw(image, with_text=True) != drawn).any()


@pytest.mark.parametrize('side, copies, named', [(30, 1, 0), (90, 1, 1), (90, 31, 0)])
def test_a_legend_stands_where_names_would_hide_objects(side, copies, named):
    box = [20.0, 40.0, 20.0 + side, 40.0 + side]
    found = Detections(
        boxes=np.array([box] * copies, np.float32),
        scores=np.full(copies, 0.9, np.float32),
        labels=np.arange(copies) % 2,
        names=['cat', 'dog'] * (copies // 2) + ['cat'] * (copies % 2),
        classes=['cat', 'dog'],
    )
    image = np.full((150, 150, 3), 100, np.uint8)
    plain, drawn = found.draw(image, with_text=False), found.draw(image)
    differs = (drawn != plain).any(2)
    assert differs[30:].any() == bool(named)  # the legend is lower than 30
    legend = drawn[:30, :20].reshape(-1, 3)
    for color in class_colors(min(copies, 2)):
        squares = (legend == color).all(1).sum()
        assert squares == (0 if named else 11 * 11)
    small, image = replace(found, boxes=found.boxes / 8), image[:20, :20]
    assert (small.draw(image) == small.draw(image, with_text=False)).all()


@pytest.mark.parametrize('corner', [(0, 0), (110, 0), (20, 20)], ids=str)
def test_names_are_whole_at_the_edges_and_beside_each_other(corner):
    ground = np.full((150, 150, 3), 128, np.uint8)

    def written(*corners):
        boxes = np.array([[*at, at[0] + 40, at[1] + 100] for at in corners], np.float32)
        count = len(boxes)
        found = Detections(
            boxes, np.full(count, 0.9), np.zeros(count, int), ['parrot'] * count
        )
        drawn = found.draw(ground, with_text=True)
        return (drawn.max(2) < 60).sum()  # black letters on orange

    one = written((20, 40))
    assert one > 100
    assert written(corner, (20, 22)) == pytest.approx(2 * one, abs=2)


def test_colors_are_not_swapped(found):
    """supervision draws on BGR, and our arrays are RGB."""
    found.masks = None
    drawn = found.draw(np.zeros((*SIZE, 3), np.uint8), with_text=False)
    assert drawn[10, 10].tolist() == class_colors(1)[0]


@pytest.mark.parametrize(
    'classes, differ', [(['cat'], True), (['cat', 'dog'], False), (None, True)], ids=str
)
def test_objects_differ_in_color_if_the_model_has_one_class(found, classes, differ):
    image = np.zeros((*SIZE, 3), np.uint8)
    two_classes = found.draw(image, score=0, with_text=False)
    assert (two_classes[0, 1] == two_classes[11, 5]).all()  # two cats
    assert (two_classes[11, 5] != two_classes[4, 40]).any()
    cats = found[[0, 2]]
    cats.classes = classes
    drawn = cats.draw(image, score=0, with_text=False)
    assert (drawn[0, 1] != drawn[11, 5]).any() == differ


def test_images_of_another_size_are_refused(found):
    with pytest.raises(ValueError, match=r'must be the original one.* \(40, 60\)'):
        found.draw(np.zeros((60, 40, 3), np.uint8))


@pytest.mark.parametrize('source', [None, 'https://example.org/a.png', 'clip.avi#3'])
def test_drawing_requires_the_image(found, source):
    found.source = source
    with pytest.raises(ValueError, match='pass it as `image`'):
        found.draw()
