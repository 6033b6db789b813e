"""The components of the page. `page` connects them."""

import re
from collections.abc import Sequence
from types import SimpleNamespace

import gradio as gr

from ..apis.sources import IMAGES
from ..results import SCORE, Detections
from . import views

MAX_RUNS = 20
DEFAULT_RUNS = 7
NARROW = 120  # pixels, so that a phone has room for two in a row
# The gallery is as high as its pictures, with captions below them, and has two columns
# on a phone.
CSS = """
#gallery, #gallery .grid-wrap { height: auto !important; max-height: none !important; }
#gallery .grid-wrap { overflow: visible; }
#gallery .gallery-item { position: static; }
#gallery .thumbnail-item { height: auto; aspect-ratio: auto; overflow: visible; }
#gallery .caption-label {
    position: static; display: block; max-width: none; border: 0; white-space: normal;
    text-align: center;
}
.bar div { height: 1rem; border-radius: 3px; }
.bar p { display: flex; justify-content: space-between; margin: 0; }
@media (max-width: 640px) {
    #gallery .grid-container { grid-template-columns: repeat(2, 1fr) !important; }
}
"""
COMPARED = ['model', 'median, s', 'range, s', 'result']


def image_and_model(models: Sequence[str], images: Sequence[str]) -> SimpleNamespace:
    """Return what all tabs have in common: the image and the model."""
    gr.Markdown('## mmattn')
    return SimpleNamespace(
        upload=gr.File(
            label='Image: drop it here, or click',
            file_types=sorted(IMAGES),
            height=150,
            elem_id='upload',
        ),
        chosen=gr.Dropdown(
            list(images),
            value=next(iter(images), None),
            label='or choose one',
            visible=bool(images),
            elem_id='chosen',
        ),
        model=gr.Dropdown(
            list(models), value=models[0], label='Model', elem_id='model'
        ),
    )


def title(elem_id: str, model: str = '') -> gr.Markdown:
    """Return the line above a picture, which names the model."""
    return gr.Markdown(titled(model), elem_id=elem_id, latex_delimiters=[])


def titled(model: str) -> str:
    return f'**{escaped(model)}**' if model else ''


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is; a model file names classes."""
    return re.sub(r'[^\w\s.]|_|\.(?!\d)', lambda found: f'&#{ord(found[0])};', text)


def drawing() -> list:
    """Return the lowest score, what to draw, whether with names, and the opacity."""
    return [
        gr.Slider(0, 1, SCORE, step=0.01, label='Lowest score', elem_id='score'),
        gr.Radio(
            list(views.DRAWN), value=views.DRAWN[0], label='Draw', elem_id='drawn'
        ),
        gr.Checkbox(
            True,
            label='Names and scores; a legend where they would hide objects',
            elem_id='written',
        ),
        gr.Slider(
            0,
            1,
            0.5,
            step=0.05,
            label='Opacity of the label map',
            visible=False,
            elem_id='opacity',
        ),
    ]


def tiles() -> gr.Dropdown:
    """Return the choice between the whole image and sizes of tiles."""
    choices = [(f'in tiles of {side} x {side} pixels', side) for side in views.TILES]
    return gr.Dropdown(
        [('whole', 0), *choices],
        value=0,
        label='Run the image',
        elem_id='tile',
    )


def prediction(model: str) -> SimpleNamespace:
    """Return the picture of a result, how it is drawn, its table and its files."""
    named = title('title', model)
    picture = _picture('Result', 'picture')
    line = gr.Markdown(elem_id='line', latex_delimiters=[])
    style, tile = drawing(), tiles()
    with gr.Row():
        document = gr.DownloadButton(
            'Download JSON (COCO)', visible=False, size='sm', elem_id='json'
        )
        labels = gr.DownloadButton('Download label map (PNG)', visible=False, size='sm')
    table = gr.Dataframe(
        headers=views.COLUMNS[Detections],
        interactive=False,
        label='Results',
        elem_id='table',
        max_height=360,
    )
    view = [picture, line, table, document, labels]
    return SimpleNamespace(title=named, view=view, style=style, tile=tile)


def attention(model: str) -> SimpleNamespace:
    """Return the picture to click on, the place and the panels of a layer."""
    named = title('looked', model)
    gr.Markdown('Click a pixel of the image to see what it attends to.')
    with gr.Row():
        with gr.Column(scale=2):
            clicked = _picture('Image', 'clicked')
            with gr.Row():
                place = [gr.Number(label=x, precision=0, min_width=80) for x in 'xy']
        with gr.Column(scale=3):
            layer = gr.Dropdown(label='Layer', visible=False, elem_id='layer')
            own = gr.Checkbox(
                False, label='Scale each head by its own largest weight', elem_id='own'
            )
            legend = gr.Markdown(elem_id='legend', sanitize_html=False)  # it has a bar
            gallery = gr.Gallery(
                label='Heads',
                show_label=False,
                columns=3,
                object_fit='contain',
                format='png',
                buttons=['download', 'fullscreen'],
                elem_id='gallery',
            )
    return SimpleNamespace(
        title=named,
        clicked=clicked,
        place=place,
        layer=layer,
        own=own,
        legend=legend,
        gallery=gallery,
    )


def comparison(models: Sequence[str]) -> SimpleNamespace:
    """Return two models to choose, their pictures and times."""
    with gr.Row():  # on a phone a name needs the whole width
        pair = [
            gr.Dropdown(list(models), value=value, label=f'Model {side}', min_width=200)
            for side, value in zip('AB', (models[0], models[:2][-1]), strict=True)
        ]
    with gr.Row():
        start = gr.Button(
            'Compare', variant='primary', elem_id='compare', min_width=NARROW
        )
        stop = gr.Button('Stop', elem_id='stop', min_width=NARROW)
    verdict = gr.Markdown(elem_id='verdict')
    titles, pictures = [], []
    with gr.Row():
        for side in 'AB':
            with gr.Column(min_width=NARROW):
                titles.append(title(f'title_{side.lower()}', side))
                pictures.append(_picture(side, side.lower()))
    times = gr.Dataframe(
        headers=COMPARED,
        interactive=False,
        label='Times',
        elem_id='times',
        wrap=True,
        column_widths=['220px', '110px', '150px', '220px'],
    )
    runs = gr.Slider(1, MAX_RUNS, DEFAULT_RUNS, step=1, label='Runs of each')
    return SimpleNamespace(
        pair=pair,
        runs=runs,
        start=start,
        stop=stop,
        shown=[*pictures, times, verdict, *titles],
    )


def _picture(label: str, name: str) -> gr.Image:
    return gr.Image(
        label=label,
        show_label=False,  # it would hide the legend
        interactive=False,
        format='png',
        elem_id=name,
        buttons=['download', 'fullscreen'],
        min_width=NARROW,
    )
