"""Check what the page shows of results, and how it times models."""

import numpy as np
import pytest
from refusals import refuses

from mmattn.web import timing, views
from mmattn.web.photos import Photo

PHOTO = Photo('cells.png', np.full((40, 60, 3), 90, np.uint8))


def test_too_many_tiles_are_refused(monkeypatch):
    monkeypatch.setattr(views, 'MAX_TILES', 5)
    with pytest.raises(ValueError, match='6 tiles of 25 x 25 pixels are too many, .*5'):
        views.predict(None, PHOTO, 25)


test_styles_that_the_page_does_not_offer_are_refused = refuses(
    views.Style,
    (dict(score=1.5), '`score` must be from 0 to 1, got 1.5'),
    (dict(score=float('nan')), '`score` must be'),
    (dict(opacity=-0.1), '`opacity` must be'),
    (dict(drawn='all'), "`drawn` must be one of .* got 'all'"),
)


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
