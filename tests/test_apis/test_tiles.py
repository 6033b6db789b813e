"""Tiles of large images, and how their results are merged."""

import tracemalloc

import numpy as np
import pytest
from PIL import Image
from predictor_models import noise
from pycocotools import mask as coco_masks

from mmattn.apis.tiles import (
    _lies_in,
    merge_label_maps,
    merge_objects,
    predict_tiles,
    tile_boxes,
)
from mmattn.results import Detections, Segmentation


@pytest.mark.parametrize('overlap', [0, 0.2, 0.5])
@pytest.mark.parametrize(
    'size, tile',
    [((100, 230), 64), ((100, 230), (50, 70)), ((64, 64), 64), ((30, 200), 64)],
    ids=str,
)
def test_tiles_cover_the_image_and_have_one_size(size, tile, overlap):
    boxes = tile_boxes(size, tile, overlap)
    covered = np.zeros(size, int)
    sides = (tile, tile) if isinstance(tile, int) else tile
    for x1, y1, x2, y2 in boxes:
        assert (y2 - y1, x2 - x1) == tuple(map(min, sides, size))
        covered[y1:y2, x1:x2] += 1
    assert covered.min() == 1 and len({tuple(box) for box in boxes}) == len(boxes)


@pytest.mark.parametrize(
    'tile, overlap, message',
    [
        (0, 0.2, '`tile` must be a positive number'),
        ((3, 4, 5), 0.2, '`tile` must be'),
        (8.5, 0.2, '`tile` must be'),
        (8, 1, '`overlap` must be at least 0 and less than 1, got 1'),
    ],
)
def test_tiles_that_make_no_sense(tile, overlap, message):
    with pytest.raises(ValueError, match=message):
        tile_boxes((9, 9), tile, overlap)


def objects(boxes, scores, labels=None, size=(100, 160), masks=None):
    boxes, scores = (np.array(x, np.float32) for x in (boxes, scores))
    labels = np.zeros(len(scores), int) if labels is None else np.array(labels)
    names = [str(label) for label in labels]
    return Detections(boxes.reshape(-1, 4), scores, labels, names, masks, size=size)


def bright_squares(images, scale=None):
    """Detect white squares, as boxes and masks in each image."""
    from scipy import ndimage

    results = []
    for image in images:
        components, _ = ndimage.label(image[..., 0] == 255)
        found, size = ndimage.find_objects(components), image.shape[:2]
        boxes = [[x.start, y.start, x.stop, y.stop] for y, x in found]
        masks = [components == i + 1 for i in range(len(found))]
        masks = np.array(masks, bool).reshape(-1, *size)
        area = masks.sum((1, 2))
        squares = objects(boxes, area / 1000, size=size, masks=masks)
        results.append(squares[np.argsort(area)[::-1]])
    return results


def test_objects_of_overlapping_tiles_are_merged():
    image = np.zeros((150, 200, 3), np.uint8)
    squares = [(5, 5, 15), (55, 58, 12), (100, 44, 14), (60, 150, 16), (130, 180, 20)]
    for y, x, side in squares:
        image[y : y + side, x : x + side] = 255
    found = predict_tiles(bright_squares, image, 64, 0.4, batch_size=3)
    (whole,) = bright_squares([image])
    assert len(found) == len(squares) and found.size == (150, 200)
    assert (np.diff(found.scores) <= 0).all()
    expected = {tuple(box) for box in whole.boxes.tolist()}
    assert {tuple(box) for box in found.boxes.tolist()} == expected
    for box, mask in zip(found.boxes.astype(int), found.masks, strict=True):
        x1, y1, x2, y2 = box
        assert mask.shape == (150, 200)
        assert mask[y1:y2, x1:x2].all() and mask.sum() == (y2 - y1) * (x2 - x1)


def test_an_object_larger_than_the_overlap_is_the_union_of_its_parts():
    image = np.zeros((40, 100, 3), np.uint8)
    image[10:30, 20:80] = 255
    found = predict_tiles(bright_squares, image, (40, 64), 0.5)
    assert found.boxes[0].tolist() == [20, 10, 80, 30]
    assert np.asarray(found.masks)[0].sum() == 20 * 60


TILES = [[0, 0, 100, 100], [60, 0, 160, 100]]


def test_objects_of_other_classes_stay():
    left = objects(
        [[65, 10, 90, 40], [66, 10, 90, 40], [80, 50, 99, 70]], [9, 8, 7], [0, 1, 1]
    )
    right = objects([[80, 50, 120, 70]], [6], [0])
    found = merge_objects([left, right], TILES)
    assert found.names == ['0', '1', '1', '0'] and found.masks is None
    np.testing.assert_array_equal(found.scores, [9, 8, 7, 6])


def test_of_whole_objects_the_best_stays_as_it_is():
    left = objects([[62, 10, 90, 40], [10, 10, 20, 20]], [0.8, 0.5])
    right = objects([[64, 12, 92, 41]], [0.9])
    found = merge_objects([left, right], TILES)
    np.testing.assert_array_equal(found.boxes, [[64, 12, 92, 41], [10, 10, 20, 20]])


def test_whole_objects_of_one_tile_stay_where_they_overlap_a_little():
    """A small one within a large one is what the detector means."""
    left = objects([[5, 5, 55, 55], [10, 10, 20, 20]], [0.9, 0.8])
    assert len(merge_objects([left, objects([], [])], TILES)) == 2


@pytest.mark.parametrize('score', [0.1, 0.99])
def test_a_part_gives_way_to_the_whole_object_whatever_its_score(score):
    left = objects([[80, 50, 99, 70]], [score])
    right = objects([[80, 50, 120, 70]], [0.5])
    found = merge_objects([left, right], TILES)
    np.testing.assert_array_equal(found.boxes, [[80, 50, 120, 70]])


def test_parts_are_compared_with_whole_objects_by_box_and_class():
    rng = np.random.default_rng(0)
    boxes = rng.integers(0, 60, (2, 40, 4)).astype(float)
    boxes[..., 2:] = boxes[..., :2] + boxes[..., 2:] // 2 + 1
    labels = rng.integers(0, 3, (2, 40, 1))
    parts, whole = np.concatenate([boxes, np.ones((2, 40, 1)), labels], 2)
    pixels = np.zeros((2, 40, 100, 100), bool)
    for masks, rows in zip(pixels, (parts, whole), strict=True):
        for mask, (x1, y1, x2, y2, *_) in zip(masks, rows.astype(int), strict=True):
            mask[y1:y2, x1:x2] = True
    inside = np.einsum('nhw,mhw->nm', *pixels.astype(np.float32))
    enough = inside >= 0.5 * pixels[0].sum((1, 2))[:, None]
    expected = (enough & (parts[:, None, 5] == whole[:, 5])).any(1)
    np.testing.assert_array_equal(_lies_in(parts, whole), expected)
    assert 5 < expected.sum() < 35


def test_memory_grows_with_the_objects_not_with_their_square():
    corners = np.random.default_rng(0).uniform(0, 20_000, (20_000, 2))
    rows = np.ones((20_000, 6))
    rows[:, :4] = np.concatenate([corners, corners + 20], 1)
    tracemalloc.start()
    _lies_in(rows, rows)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


def test_boxes_at_the_border_of_the_image_are_whole():
    left = objects([[0, 0, 50, 50], [0, 10, 20, 30]], [0.9, 0.8])
    right = objects([[110, 60, 160, 100], [140, 80, 160, 100]], [0.7, 0.6])
    assert len(merge_objects([left, right], TILES)) == 4


def test_tiled_objects_are_drawn_and_written():
    image = np.zeros((100, 120, 3), np.uint8)
    image[40:60, 50:70] = 255
    found = predict_tiles(bright_squares, image, 64, 0.4)
    drawn = found.draw(image, with_text=False)
    assert (drawn[45:55, 55:65] != 255).any() and not drawn[80:, 90:].any()
    (entry,) = found.above(0.1).to_coco()
    np.testing.assert_array_equal(
        coco_masks.decode(entry['segmentation']), np.asarray(found.masks)[0]
    )
    assert entry['area'] == 400 and entry['bbox'] == [50, 40, 20, 20]
    assert found.to_supervision().mask.area.tolist() == [400]


def test_label_maps_are_those_of_a_model_that_sees_only_pixels():
    def model(images, scale):
        return [Segmentation(image[..., 0] // 64, list('abcd')) for image in images]

    image = noise(150, 203)
    found = predict_tiles(model, image, 64, 0.3, batch_size=2)
    np.testing.assert_array_equal(found.labels, image[..., 0] // 64)
    assert found.classes == list('abcd') and found.labels.dtype == np.uint8


def test_a_pixel_is_that_of_the_tile_with_the_farthest_border():
    tiles = [[0, 0, 10, 4], [6, 0, 16, 4]]
    parts = [Segmentation(np.full((4, 10), i, np.uint8)) for i in range(2)]
    found = merge_label_maps(parts, tiles, (4, 16))
    assert found.labels[2].tolist() == [0] * 8 + [1] * 8


def test_the_options_reach_the_model():
    called = []

    def model(images, scale):
        called.append((len(images), scale))
        return [Segmentation(np.zeros(image.shape[:2], int)) for image in images]

    predict_tiles(model, noise(64, 160), 64, 0, scale=1.5, batch_size=2)
    assert called == [(2, 1.5), (1, 1.5)]


def test_a_large_file_is_read_in_windows(tmp_path, monkeypatch, caplog):
    """Windows cover the tiles, and the objects equal the whole image's."""
    pytest.importorskip('pyvips')
    from mmattn.apis import Predictor
    from mmattn.apis.writing import write_predictions
    from mmattn.images import WindowedImage

    image = np.zeros((150, 200, 3), np.uint8)
    for y, x in ((5, 5), (55, 58), (130, 180)):
        image[y : y + 15, x : x + 15] = 255
    path = tmp_path / 'large.png'
    Image.fromarray(image).save(path)
    predictor = Predictor.__new__(Predictor)
    predictor.task, predictor.name, predictor.classes = 'detection', 'squares', ['a']
    predictor.model = bright_squares
    monkeypatch.setattr(bright_squares, 'channels', None, raising=False)
    whole = predictor(path, tile=64)
    monkeypatch.setattr('mmattn.images.read.MAX_MEGAPIXELS', 0.02)
    with pytest.raises(ValueError, match='large.png has more than 0.02 million pixels'):
        predictor(path, tile=64, max_megapixels=0.02)
    ((read, found),) = predictor.stream(path, tile=64, max_megapixels=1)
    assert isinstance(read, WindowedImage) and len(found) == 3
    np.testing.assert_array_equal(found.boxes, whole.boxes)
    write_predictions(
        predictor, [path], tmp_path / 'out', score=0, tile=64, max_megapixels=1
    )
    assert 'large.png is too large to be drawn' in caplog.text
    assert [each.name for each in (tmp_path / 'out').iterdir()] == ['predictions.json']
