"""Draw what a pixel attends to in each layer and head of a model's backbone."""

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
import numpy as np
from PIL import Image, ImageDraw
from torch import nn

from mmattn.errors import UserError, check_choice

from ..analysis import (
    AttentionKernels,
    MultiScalePoints,
    SamplingPoints,
    attention_kernels,
    multi_scale_points,
    sampling_points,
)
from ..analysis.attention_maps import multiples_of_mean, top_of
from ..apis import Predictor
from ..apis.config_model import ConfigModel, ModelInput
from ..images.draw import BLACK, FIRST, WHITE, draw_cross

PANEL_SIDE = 480  # pixels of the longer side of a panel
HEAT = 0.7  # opacity of a kernel over the image
CROSS = 9  # pixels from the middle to an end
DOT = 9.0  # radius of the largest dot of multi-scale attention, in pixels
STOPS = 9  # colors of a bar
GRAY = 96  # of a bar, as an image below the colors may be
CAPTIONS = 'Numbers are the largest weight as a multiple of the mean.'
Layer = AttentionKernels | MultiScalePoints | SamplingPoints


@dataclass(frozen=True)
class Inside:
    """Hold what a pixel attends to.

    Attributes:
        layers: attention kernels and sampling points by the name that the page shows.
        picture: the image as the model sees it, shape (H, W, 3), padding included.
        size: its height and width without padding.
    """

    layers: dict[str, Layer]
    picture: np.ndarray
    size: tuple[int, int]

    def legend(self, layer: str) -> str:
        """Return what the colors of a layer's panels mean."""
        found = self.layers[layer]
        if isinstance(found, MultiScalePoints):
            maps = ', '.join(
                f'{color} {height} x {width}'
                for color, (height, width) in zip(
                    FIRST, sorted(found.sizes, reverse=True), strict=False
                )
            )
            return (
                'Dots are the places that each head samples for the query at the '
                f'cross. Their color is the map: {maps} pixels. The larger a dot, the '
                f'more the query attends to it. {CAPTIONS}'
            )
        if isinstance(found, SamplingPoints):
            return (
                'Dots are the keys that each group samples for the whole image. The '
                'brighter a dot, the more the clicked pixel (cross) attends to it. '
                f'{CAPTIONS}'
            )
        return f'Weights of all pixels at the clicked one (white box). {CAPTIONS}'

    def bar(self, layer: str, own: bool = False) -> str:
        """Return the scale of a layer's colors as HTML, empty for sizes of dots."""
        found = self.layers[layer]
        if isinstance(found, MultiScalePoints):
            return ''
        multiples = _multiples(found)
        signed = bool((multiples < 0).any())
        colors = _colors(np.linspace(-1 if signed else 0, 1, STOPS), signed)
        if isinstance(found, AttentionKernels):
            colors = (1 - HEAT) * GRAY + HEAT * colors
        stops = ', '.join(f'rgb({r:.0f} {g:.0f} {b:.0f})' for r, g, b in colors)
        top = f'{top_of(multiples):.3g} x the mean'
        top = 'largest of each' if own else top
        ends = [f'- {top}', '0', top] if signed else ['0', top]
        texts = ''.join(f'<span>{text}</span>' for text in ends)
        return (
            f'<div class="bar"><div style="background: linear-gradient(to right, '
            f'{stops})"></div><p>{texts}</p></div>'
        )


def look_inside(predictor: Predictor, image: np.ndarray, y: int, x: int) -> Inside:
    """Run the model and return what a pixel attends to in all layers.

    In a decoder, the query is the one whose reference is nearest to the pixel.

    Args:
        predictor: the model.
        image: shape (H, W, 3), uint8 RGB.
        y, x: row and column of the pixel.

    Raises:
        ValueError: the model is an exported file, its attention cannot be read, or the
            pixel is not in what the model sees.
    """
    if not isinstance(predictor.model, ConfigModel):
        raise UserError(
            f'{predictor.name} is an exported file, whose layers cannot be seen: start '
            'the page with the work dir or the config and its weights'
        )

    def read(model: nn.Module, view: ModelInput) -> Inside:
        query, backbone = view.place(y, x), model.backbone
        kernels, no_kernels = _try(attention_kernels, backbone, view.inputs, [query])
        points, no_points = _try(sampling_points, backbone, view.inputs, query)
        size = view.inputs.shape[-2:]
        samples, no_samples = _try(multi_scale_points, model, view.run, size, query)
        if not kernels and not points and not samples:
            raise UserError(f'{no_kernels}; {no_points}; {no_samples}')
        layers = {}
        for i, layer in enumerate(kernels):
            heads, height, width = layer.kernels.shape[1:]
            grid = f'{heads} heads, {height} x {width} keys'
            layers[f'{i + 1}. {_block(layer.layer)}: {grid}'] = layer
        for i, layer in enumerate(points):
            groups, keys = layer.weights.shape
            name = f'{i + 1}. points of {_block(layer.layer)}'
            layers[f'{name}: {groups} groups, {keys} keys'] = layer
        for i, layer in enumerate(samples):
            heads, maps, keys = layer.weights.shape
            name = f'{i + 1}. points of {_block(layer.layer)}'
            layers[f'{name}: {heads} heads, {keys} on each of {maps} maps'] = layer
        return Inside(layers, view.picture, view.size)

    return predictor.model.inspect(image, read)


def _try(function: Callable, *args) -> tuple[list, str]:
    """Return what a function finds, or nothing and why."""
    try:
        return function(*args), ''
    except ValueError as error:
        return [], str(error)


def _block(layer: str) -> str:
    return layer.removesuffix('.attn') or 'backbone'


def panels(
    inside: Inside, layer: str, own: bool = False
) -> list[tuple[np.ndarray, str]]:
    """Return a picture and a caption for each head, or each group of points.

    All have one scale of colors, or of dots, unless each has its `own`.

    Raises:
        ValueError: there is no such layer.
    """
    check_choice('the layer', layer, inside.layers)
    found = inside.layers[layer]
    draw, kind = {
        AttentionKernels: (_kernel_panel, 'head'),
        MultiScalePoints: (_multi_scale_panel, 'head'),
        SamplingPoints: (_points_panel, 'group'),
    }[type(found)]
    multiples = _multiples(found)
    largest = np.abs(multiples).max(tuple(range(1, multiples.ndim)))
    tops = largest if own else np.full_like(largest, top_of(multiples))
    signed = bool((multiples < 0).any())
    return [
        (
            draw(inside, found, i, multiples[i] / (tops[i] or 1), signed),
            f'{kind} {i + 1}: {most:.3g}x' if most else f'{kind} {i + 1}: all 0',
        )
        for i, most in enumerate(largest)
    ]


def _multiples(found: Layer) -> np.ndarray:
    kernels = isinstance(found, AttentionKernels)
    return multiples_of_mean(found.kernels[0] if kernels else found.weights)


def _colors(shares: np.ndarray, signed: bool) -> np.ndarray:
    """Return the RGB bytes of shares of a scale, of shape (..., 3)."""
    map_ = matplotlib.colormaps['PRGn' if signed else 'inferno']
    return (map_((shares + 1) / 2 if signed else shares)[..., :3] * 255).astype(
        np.uint8
    )


def _kernel_panel(
    inside: Inside, found: AttentionKernels, head: int, shares: np.ndarray, signed: bool
) -> np.ndarray:
    """Draw a kernel over the gray image, with a box around the query's cell."""
    heat = Image.fromarray(_colors(shares, signed))
    gray = Image.fromarray(inside.picture).convert('L').convert('RGB')
    size, factor = _panel_size(inside)
    panel = Image.blend(
        gray.resize(size), heat.resize(size, Image.Resampling.NEAREST), HEAT
    )
    row, column = found.cells[0]
    cell = np.array(size) / shares.shape[::-1]
    corner = np.array([column, row]) * cell
    last = np.maximum(corner + cell - 1, corner + 1)
    draw = ImageDraw.Draw(panel)
    draw.rectangle([*(corner - 2), *(last + 2)], outline=BLACK, width=2)
    draw.rectangle([*corner, *last], outline=WHITE, width=2)
    return _without_padding(panel, inside, factor)


def _points_panel(
    inside: Inside, found: SamplingPoints, group: int, shares: np.ndarray, signed: bool
) -> np.ndarray:
    """Draw where a group samples; brighter points get more attention."""
    panel, draw, factor = _dark_panel(inside)
    places = found.points[group].float().cpu().numpy() * factor
    radius = max(1.5, 0.25 * (panel.width * panel.height / len(places)) ** 0.5)
    radius = min(radius, 6.0)
    colors = _colors(shares, signed)
    for i in np.argsort(shares):  # the strongest on top
        _dot(draw, places[i], radius, tuple(colors[i].tolist()))
    if found.query is not None:
        draw_cross(draw, np.array(found.query) * factor, CROSS)
    return _without_padding(panel, inside, factor)


def _multi_scale_panel(
    inside: Inside,
    found: MultiScalePoints,
    head: int,
    shares: np.ndarray,
    signed: bool,
) -> np.ndarray:
    """Draw where a head samples on each map; larger dots get more attention."""
    panel, draw, factor = _dark_panel(inside)
    places = found.points[head].float().cpu().numpy() * factor
    finest_first = sorted(found.sizes, reverse=True)
    palette = [*FIRST.values()]
    for i in np.argsort(-shares, axis=None):  # small dots on top
        level, point = np.unravel_index(i, shares.shape)
        color = palette[finest_first.index(found.sizes[level]) % len(palette)]
        radius = max(1.5, DOT * shares[level, point] ** 0.5)
        _dot(draw, places[level, point], radius, color)
    draw_cross(draw, np.array(found.query) * factor, CROSS)
    return _without_padding(panel, inside, factor)


def _dark_panel(inside: Inside) -> tuple[Image.Image, ImageDraw.ImageDraw, float]:
    """Return a gray panel, what draws on it, and its pixels for one of the model's."""
    size, factor = _panel_size(inside)
    gray = Image.fromarray(inside.picture).convert('L').convert('RGB').resize(size)
    panel = gray.point(lambda value: value * 0.6)
    return panel, ImageDraw.Draw(panel), factor


def _dot(
    draw: ImageDraw.ImageDraw, place: np.ndarray, radius: float, color: tuple[int, ...]
):
    y, x = place
    box = (x - radius, y - radius, x + radius, y + radius)
    draw.ellipse(box, fill=color, outline=WHITE)


def _panel_size(inside: Inside) -> tuple[tuple[int, int], float]:
    """Return the width and height of a panel, and its pixels for one of the model's."""
    height, width = inside.picture.shape[:2]
    factor = PANEL_SIDE / max(height, width)
    return (max(1, round(width * factor)), max(1, round(height * factor))), factor


def _without_padding(panel: Image.Image, inside: Inside, factor: float) -> np.ndarray:
    height, width = (max(1, round(side * factor)) for side in inside.size)
    return np.asarray(panel.crop((0, 0, width, height)))
