"""Check what the page shows of results, and how it times models."""

from types import SimpleNamespace

import numpy as np
import pytest
from pycocotools import mask as coco_masks
from refusals import refuses

from mmattn.results import Detections, Segmentation
from mmattn.web import timing, views
from mmattn.web.photos import Photo

PHOTO = Photo('cells.png', np.full((40, 60, 3), 90, np.uint8))


def kept(result):
    """Return what the page keeps of a result."""

    class Predictor:
        classes = ['a', 'b']
        model = SimpleNamespace(prepared_size=lambda pixels: (30, 50))

        def __call__(self, pixels):
            assert pixels is PHOTO.pixels
            return result

    found = views.predict(Predictor(), PHOTO)
    assert found.classes == ['a', 'b']
    assert found.seen == 'The model sees 50 x 30 pixels.'
    return found.result


def detections(with_masks=True):
    masks = np.zeros((3, 40, 60), bool)
    masks[0, 5:15, 10:30] = masks[1, 20:24, 40:50] = masks[2, 30:32, 2:4] = True
    boxes = [[10, 5, 30, 15], [40, 20, 50, 24], [2, 30, 4, 32.25]]
    return Detections(
        np.array(boxes, np.float32),
        np.array([0.9, 0.5, 0.1], np.float32),
        np.array([1, 0, 1]),
        ['b', 'a', 'b'],
        masks if with_masks else None,
        size=(40, 60),
    )


def test_tiles(monkeypatch):
    given, shapes = [], []

    class Predictor:
        classes = None
        model = SimpleNamespace(
            prepared_size=lambda pixels: shapes.append(pixels.shape) or (60, 50)
        )

        def __call__(self, pixels, **options):
            given.append(options)
            return detections()

    found = views.predict(Predictor(), PHOTO, 25)
    assert given == [dict(tile=25, overlap=0.2)] and shapes == [(25, 25, 3)]
    # At 0 and 15 of 40 rows, and at 0, 20 and 35 of 60 columns.
    assert found.seen == 'The model sees 50 x 60 pixels of each of 6 tiles.'
    monkeypatch.setattr(views, 'MAX_TILES', 5)
    with pytest.raises(ValueError, match='6 tiles of 25 x 25 pixels are too many, .*5'):
        views.predict(Predictor(), PHOTO, 25)
    assert len(given) == 1


@pytest.mark.parametrize('with_masks', [True, False], ids=['masks', 'boxes'])
def test_objects(with_masks):
    result = kept(detections(with_masks))
    assert views.rows(result, 0.5) == [
        ['b', 0.9, 10.0, 5.0, 20.0, 10.0, 200],
        ['a', 0.5, 40.0, 20.0, 10.0, 4.0, 40],
    ]
    assert views.rows(result, 0)[2][-1] == 4
    assert views.describe(result, 0.5) == '2 objects with a score of at least 0.5'
    document = views.document(result, 0.5, ['a', 'b', 'c'])
    assert document['images'][0]['file_name'] == 'cells.png'
    assert [each['category_id'] for each in document['annotations']] == [2, 1]
    assert [each['name'] for each in document['categories']] == ['a', 'b', 'c']
    if with_masks:
        masks = [each['segmentation'] for each in document['annotations']]
        decoded = coco_masks.decode(masks).transpose(2, 0, 1).astype(bool)
        np.testing.assert_array_equal(decoded, detections().masks[:2])


test_styles_that_the_page_does_not_offer_are_refused = refuses(
    views.Style,
    (dict(score=1.5), '`score` must be from 0 to 1, got 1.5'),
    (dict(score=float('nan')), '`score` must be'),
    (dict(opacity=-0.1), '`opacity` must be'),
    (dict(drawn='all'), "`drawn` must be one of .* got 'all'"),
)


def test_label_maps():
    labels = np.zeros((40, 60), np.uint8)
    labels[:10] = 2
    palette = [[0, 0, 0], [9, 9, 9], [200, 0, 0]]
    result = kept(Segmentation(labels, ['x', 'y', 'z'], palette))
    assert views.rows(result, 0) == [['x', 75.0, 1800], ['z', 25.0, 600]]
    assert views.describe(result, 0) == '2 classes'
    for opacity, value in ((0, 90), (1, 200)):
        picture = views.draw(result, PHOTO, views.Style(opacity=opacity))
        assert picture[50, 550, 0] == value
    document = views.document(result, 0, result.classes)
    assert [each['area'] for each in document['annotations']] == [1800, 600]


def test_models_take_turns_and_the_first_run_is_not_counted(monkeypatch):
    now, order = [0.0], []

    def model(name, seconds):
        seconds = iter(seconds)

        def run(image):
            now[0] += next(seconds)
            order.append(name)
            return name

        return run

    monkeypatch.setattr(timing.time, 'perf_counter', lambda: now[0])
    models = [model('a', [9, 1, 2, 6]), model('b', [8, 3, 4, 5])]
    steps = [
        [len(each.seconds) for each in times]
        for times in timing.time_in_turns(models, PHOTO.pixels, 3)
    ]
    assert ''.join(order) == 'abababab'
    assert steps == [[0, 0], [0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]
    models = [model('a', [9, 1, 2, 6]), model('b', [8, 3, 4, 5])]
    *_, times = timing.time_in_turns(models, PHOTO.pixels, 3)
    assert [each.first for each in times] == [9, 8]
    assert [each.median for each in times] == [2, 4]
    assert [each.result for each in times] == ['a', 'b']
