"""The page: its components, and what happens when they are used."""

import html
import json
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from uuid import uuid4

import gradio as gr
import numpy as np
from PIL import Image, ImageDraw

from mmattn.errors import UserError

from ..images.draw import draw_cross
from ..results import Segmentation
from . import layout, views
from .inside import Inside, look_inside, panels
from .layout import MAX_RUNS
from .models import Models
from .photos import Photo, read_photo
from .timing import Timed, ratios, time_in_turns

DOWNLOADS = 64  # files that are kept for users to download
KEPT_SECONDS = 3600  # of what a user sees after the last request
WAITING = 32  # requests, besides the one that runs
# Values of the components that hold and show a result, an attention, a comparison.
NO_RESULT = (None, None, '', *[gr.update(visible=False)] * 3)
NO_ATTENTION = (None, [], '')
NO_COMPARISON = (None, None, [], '', *map(layout.titled, 'AB'))
# One model runs at a time, for all users together.
HEAVY = dict(concurrency_id='model', concurrency_limit=1)
LIGHT = dict(concurrency_id='drawing', concurrency_limit=2)


@contextmanager
def errors_as_messages():
    """Turn errors of users, of models and of a full memory into messages."""
    try:
        yield
    except (ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
        text = html.escape(f'{error}' or type(error).__name__)
        raise gr.Error(text, duration=15, print_exception=False) from error


class Page:
    """Functions behind the page, which `blocks` lays out; see `server.serve`.

    Args:
        folder: where files to download are written.
    """

    def __init__(
        self,
        models: Models,
        images: Mapping[str, Path],
        max_megapixels: float,
        folder: Path,
    ):
        self.models, self.images = models, dict(images)
        self.max_megapixels = max_megapixels
        self.folder = folder
        self._written = deque()

    def load(self, path: str | None):
        """Read an uploaded image; return it, and the picture to click on.

        What the tabs show of the image before is cleared, and so is the other way to
        choose one.
        """
        photo = shown = None
        if path is not None:
            with errors_as_messages():
                photo = read_photo(path, self.max_megapixels)
            shown = _picture(photo.shown())
        return photo, shown, *NO_RESULT, *NO_ATTENTION, *NO_COMPARISON, None

    def choose(self, name: str | None):
        """Read one of the images that the page was started with."""
        with errors_as_messages():
            if name not in self.images:
                raise UserError(f'there is no image {name!r} to choose')
        return self.load(str(self.images[name]))

    def predict(
        self,
        photo: Photo | None,
        model: str,
        score: float,
        drawn: str,
        names: bool,
        opacity: float,
        tile: int,
    ):
        """Run a model; return the result and what shows it."""
        with errors_as_messages():
            _check_chosen(photo)
            predictor = self.models[model]
            cut = predictor.task != 'classification'
            found = views.predict(predictor, photo, tile if cut else 0)
        boxes, labels = (
            predictor.task == task for task in ('detection', 'segmentation')
        )
        return (
            found,
            *self.redraw(photo, found, score, drawn, names, opacity),
            gr.update(visible=boxes),
            gr.update(visible=boxes and found.result.masks is not None),
            gr.update(visible=boxes),
            gr.update(visible=labels),
            gr.update(visible=cut),
        )

    def switch(self, photo: Photo | None, *values):
        """Run again with another model or tile, if there is an image yet."""
        return gr.skip() if photo is None else self.predict(photo, *values)

    def redraw(
        self,
        photo: Photo | None,
        found: views.Prediction | None,
        score: float,
        drawn: str,
        names: bool,
        opacity: float,
    ):
        """Return what shows a result: picture, line, table and files."""
        if photo is None or found is None:
            return NO_RESULT[1:]
        with errors_as_messages():
            style = views.Style(score, drawn, names, opacity)
            result, stem = found.result, Path(photo.name).stem
            document = views.document(result, score, found.classes)
            file = self._file(f'{stem}.json', json.dumps(document).encode())
            labels = gr.update(visible=False)
            if isinstance(result, Segmentation):
                path = self._file(f'{stem}_labels.png')
                Image.fromarray(result.labels).save(path)
                labels = gr.update(value=path, visible=True)
            rows = views.rows(result, score)
            return (
                _picture(views.draw(result, photo, style)),
                f'{layout.escaped(views.describe(result, score))}. {found.seen}',
                gr.update(
                    value=rows,
                    headers=views.COLUMNS[type(result)],
                    visible=bool(rows),  # an empty table would keep the rows before
                ),
                gr.update(value=file, visible=True),
                labels,
            )

    def look(
        self,
        photo: Photo | None,
        model: str,
        x: float,
        y: float,
        layer: str,
        own: bool,
    ):
        """Return what a pixel of the image attends to."""
        with errors_as_messages():
            _check_chosen(photo)
            if x is None or y is None:
                raise UserError('click on a pixel, or write its x and y')
            inside = look_inside(self.models[model], photo.pixels, int(y), int(x))
        names = list(inside.layers)
        layer = layer if layer in names else names[-1]
        choices = gr.update(choices=names, value=layer, visible=True)
        marked = _picture(_marked(photo, x, y))
        return choices, marked, inside, *self.show(inside, layer, own)

    def show(self, inside: Inside | None, layer: str | None, own: bool):
        """Return the panels of a layer, and what they mean."""
        if inside is None or layer is None:
            return [], ''
        with errors_as_messages():
            drawn = [
                (_picture(panel), text) for panel, text in panels(inside, layer, own)
            ]
            return drawn, f'{inside.bar(layer, own)}{inside.legend(layer)}'

    def compare(
        self, photo: Photo | None, first: str, second: str, score: float, runs: int
    ) -> Iterator:
        """Run two models in turns; yield pictures and times after each run."""
        with errors_as_messages():
            _check_chosen(photo)
            if not 1 <= runs <= MAX_RUNS:
                raise UserError(f'runs must be from 1 to {MAX_RUNS}, got {runs}')
            style = views.Style(score)
            names = (first, second)
            predictors = [self.models[name] for name in names]
            titles = [layout.titled(f'A: {first}'), layout.titled(f'B: {second}')]
            drawn = [None, None]
            for times in time_in_turns(predictors, photo.pixels, int(runs)):
                for i, each in enumerate(times):
                    if drawn[i] is None and each.result is not None:
                        drawn[i] = views.draw(each.result, photo, style)
                rows = [
                    _compared(*pair, score) for pair in zip(names, times, strict=True)
                ]
                yield *map(_picture, drawn), rows, _verdict(times), *titles

    def _file(self, name: str, content: bytes = b'') -> str:
        """Write a file to download, and remove the oldest of many."""
        path = Path(tempfile.mkdtemp(dir=self.folder)) / name
        path.write_bytes(content)
        self._written.append(path)
        while len(self._written) > DOWNLOADS:
            old = self._written.popleft()
            old.unlink(missing_ok=True)
            old.parent.rmdir()
        return str(path)

    def blocks(self) -> gr.Blocks:
        """Return the page. The browser receives no more than names."""
        with gr.Blocks(
            title='mmattn',
            analytics_enabled=False,
            delete_cache=(KEPT_SECONDS // 6, KEPT_SECONDS),
            fill_width=True,
        ) as page:
            with gr.Row():
                with gr.Column(scale=1, min_width=300):
                    common = layout.image_and_model(self.models.names, [*self.images])
                first = self.models.names[0]
                with gr.Column(scale=4), gr.Tabs():
                    with gr.Tab('Predict'):
                        predicted = layout.prediction(first)
                    with gr.Tab('Attention'):
                        looked = layout.attention(first)
                    with gr.Tab('Compare'):
                        compared = layout.comparison(self.models.names)
            self._connect(page, common, predicted, looked, compared)
        return page.queue(max_size=WAITING)

    def _connect(self, page, common, predicted, looked, compared):
        """Say which function runs when a component is used."""
        private = dict(api_visibility='private')  # repeats what another event does
        photo, result, inside = (gr.State(time_to_live=KEPT_SECONDS) for _ in range(3))
        view, style, tile = predicted.view, predicted.style, predicted.tile
        predicting = dict(
            fn=self.predict,
            inputs=[photo, common.model, *style, tile],
            outputs=[result, *view, *style, tile],
            show_progress_on=view[0],
            **HEAVY,
        )
        panel = [inside, looked.gallery, looked.legend]
        loaded = [photo, looked.clicked, result, *view, *panel, *compared.shown]
        uploading, choosing = [*loaded, common.chosen], [*loaded, common.upload]
        emptying = dict(fn=lambda: self.load(None), **private)
        uploaded = common.upload.upload(self.load, common.upload, uploading, **LIGHT)
        uploaded.success(**predicting)
        uploaded.failure(**emptying, outputs=uploading)
        chosen = common.chosen.input(self.choose, common.chosen, choosing, **LIGHT)
        chosen.success(**predicting, **private)
        chosen.failure(**emptying, outputs=choosing)
        if self.images:
            begun = page.load(self.choose, common.chosen, choosing, **private)
            begun.success(**predicting, **private)
        common.upload.clear(**emptying, outputs=uploading)
        common.model.input(
            lambda model: (*NO_ATTENTION, *[layout.titled(model)] * 2),
            common.model,
            [*panel, predicted.title, looked.title],
            **private,
        )
        for choice in (common.model, tile):
            choice.input(**predicting | dict(fn=self.switch), **private).failure(
                lambda: NO_RESULT, outputs=[result, *view], **private
            )

        score, drawn, written, opacity = style
        redrawing = dict(
            fn=self.redraw, inputs=[photo, result, *style], outputs=view, **LIGHT
        )
        score.release(**redrawing)
        for event in (drawn.input, written.input, opacity.release):
            event(**redrawing, **private)

        which = [looked.layer, looked.own]
        looking = dict(
            fn=self.look,
            inputs=[photo, common.model, *looked.place, *which],
            outputs=[looked.layer, looked.clicked, *panel],
            show_progress_on=looked.gallery,
            **HEAVY,
        )
        looked.clicked.select(_place, photo, outputs=looked.place, **private).success(
            **looking
        )
        for number in looked.place:
            number.submit(**looking, **private)
        showing = dict(fn=self.show, inputs=[inside, *which], outputs=panel[1:])
        looked.layer.input(**showing, **LIGHT)
        looked.own.input(**showing, **LIGHT, **private)

        running = compared.start.click(
            self.compare,
            [photo, *compared.pair, score, compared.runs],
            compared.shown,
            **HEAVY,
        )
        compared.stop.click(None, cancels=running)


def _check_chosen(photo: Photo | None):
    if photo is None:
        raise UserError('drop or choose an image first')


def _place(photo: Photo, event: gr.SelectData) -> tuple[int, int]:
    """Return column and row in the image of a clicked pixel of the shown picture."""
    row, column = photo.pixel(*event.index)
    return column, row


def _picture(pixels: np.ndarray | None) -> Image.Image | None:
    """Return a picture whose file belongs to one answer.

    Gradio names a file by its content, and writes it again while a browser may read it.
    """
    if pixels is None:
        return None
    picture = Image.fromarray(pixels)
    picture.info['answer'] = uuid4().hex  # Gradio writes it into the file
    return picture


def _marked(photo: Photo, x: float, y: float) -> np.ndarray:
    """Return the picture to click on with a cross at a pixel of the image."""
    picture = Image.fromarray(photo.shown())
    place = [(int(place) + 0.5) / photo.factor for place in (y, x)]
    draw_cross(ImageDraw.Draw(picture), place, max(8, max(picture.size) // 50))
    return np.asarray(picture)


def _compared(name: str, timed: Timed, score: float) -> list:
    low, high = timed.spread or (None, None)
    seconds = ['' if each is None else f'{each:.3f}' for each in (timed.median, low)]
    if high is not None:
        seconds[1] += f' to {high:.3f}'
    line = '' if timed.result is None else views.describe(timed.result, score)
    return [name, *seconds, line]


def _verdict(times: list[Timed]) -> str:
    """Say which model is faster, once both have run, if all turns agree on it."""
    a, b = times
    if not b.seconds:
        return 'The first run prepares a model and is not counted.'
    slow, fast, turns = 'B', 'A', ratios(b, a)
    if median(turns) < 1:
        slow, fast, turns = 'A', 'B', ratios(a, b)
    low, high = min(turns), max(turns)
    plural = 's' if len(turns) > 1 else ''
    runs = f'median of {len(turns)} run{plural} in turns; {low:.2f} to {high:.2f}'
    text = f'{slow} takes {median(turns):.2f} times as long as {fast} ({runs}).'
    if low <= 1:
        text += ' The turns do not agree on which model is faster.'
    return text
