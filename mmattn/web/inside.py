"""Draw what a pixel attends to in each layer and head of a model's backbone."""

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
import numpy as np
from PIL import Image, ImageDraw
from torch import nn

from mmattn.errors import UserError

from ..analysis import (
    AttentionKernels,
    MultiScalePoints,
    SamplingPoints,
    attention_kernels,
    multi_scale_points,
    sampling_points,
)
from ..apis import Predictor
from ..apis.config_model import ConfigModel, ModelInput

PANEL_SIDE = 480  # pixels of the longer side of a panel
HEAT = 0.7  # opacity of a kernel over the image
RED = (255, 0, 0)
WHITE = (255, 255, 255)
# Colors of the maps on which multi-scale attention samples, the finest map first.
LEVELS = {
    'yellow': (255, 225, 60),
    'cyan': (60, 220, 255),
    'magenta': (255, 90, 230),
    'green': (90, 230, 90),
    'orange': (255, 150, 40),
}
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
                    LEVELS, sorted(found.sizes, reverse=True), strict=False
                )
            )
            colors = (
                'Dots are the places that each head samples for the query at the red '
                f'cross. Their color is the map: {maps} pixels. The larger a dot, the '
                'more the query attends to it.'
            )
        elif isinstance(found, SamplingPoints):
            colors = (
                'Dots are the keys that each group samples for the whole image. The '
                'brighter a dot, the more the clicked pixel (red cross) attends to it.'
            )
        elif (found.kernels < 0).any():
            colors = (
                'The weights of all pixels at the clicked one (red box): green is '
                'positive, violet is negative, white is 0.'
            )
        else:
            colors = (
                'The weights of all pixels at the clicked one (red box): the brighter, '
                'the more it attends to them.'
            )
        return (
            f'{colors} Each panel has its own scale; the number is its largest weight, '
            'as a multiple of the mean.'
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
        kernels, no_kernels = _try(attention_kernels, backbone, view.tensor, [query])
        points, no_points = _try(sampling_points, backbone, view.tensor, query)
        size = view.tensor.shape[-2:]
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


def panels(inside: Inside, layer: str) -> list[tuple[np.ndarray, str]]:
    """Return a picture and a caption for each head, or each group of points.

    Args:
        inside: what a pixel attends to.
        layer: one of its `layers`.

    Raises:
        ValueError: there is no such layer.
    """
    if layer not in inside.layers:
        raise UserError(f'the layer must be one of {list(inside.layers)}, got {layer}')
    found = inside.layers[layer]
    draw, kind = {
        AttentionKernels: (_kernel_panel, 'head'),
        MultiScalePoints: (_multi_scale_panel, 'head'),
        SamplingPoints: (_points_panel, 'group'),
    }[type(found)]
    weights = _weights(found)
    signed = bool((weights < 0).any())
    return [
        (draw(inside, found, i, signed), f'{kind} {i + 1}: {_strength(weights[i])}')
        for i in range(len(weights))
    ]


def _weights(found: Layer) -> np.ndarray:
    weights = found.kernels[0] if isinstance(found, AttentionKernels) else found.weights
    return weights.float().cpu().numpy()


def _strength(weights: np.ndarray) -> str:
    """Return the largest weight as a multiple of the mean, as text."""
    most = np.abs(weights).max()
    mean = np.abs(weights).mean()
    return f'{most / mean:.3g}x' if mean > 0 else 'all 0'


def _kernel_panel(
    inside: Inside, found: AttentionKernels, head: int, signed: bool
) -> np.ndarray:
    """Draw a kernel over the gray image, with a box around the query's cell."""
    kernel = _weights(found)[head]
    most = max(np.abs(kernel).max(), np.finfo(np.float32).tiny)
    colors = matplotlib.colormaps['PRGn' if signed else 'inferno']
    level = (kernel / most + 1) / 2 if signed else kernel / most
    heat = Image.fromarray((colors(level)[..., :3] * 255).astype(np.uint8))
    gray = Image.fromarray(inside.picture).convert('L').convert('RGB')
    size, factor = _panel_size(inside)
    panel = Image.blend(
        gray.resize(size), heat.resize(size, Image.Resampling.NEAREST), HEAT
    )
    row, column = found.cells[0]
    cell = np.array(size) / kernel.shape[::-1]
    corner = np.array([column, row]) * cell
    last = np.maximum(corner + cell - 1, corner + 1)
    ImageDraw.Draw(panel).rectangle([*corner, *last], outline=RED, width=2)
    return _without_padding(panel, inside, factor)


def _points_panel(
    inside: Inside, found: SamplingPoints, group: int, signed: bool
) -> np.ndarray:
    """Draw where a group samples; brighter points get more attention."""
    panel, draw, factor = _dark_panel(inside)
    weights = _weights(found)[group]
    places = found.points[group].float().cpu().numpy() * factor
    radius = max(1.5, 0.25 * (panel.width * panel.height / len(places)) ** 0.5)
    radius = min(radius, 6.0)
    colors = matplotlib.colormaps['inferno'](weights / weights.max())[:, :3] * 255
    for i in np.argsort(weights):  # the strongest on top
        _dot(draw, places[i], radius, tuple(colors[i].astype(int)))
    if found.query is not None:
        _cross(draw, np.array(found.query) * factor)
    return _without_padding(panel, inside, factor)


def _multi_scale_panel(
    inside: Inside, found: MultiScalePoints, head: int, signed: bool
) -> np.ndarray:
    """Draw where a head samples on each map; larger dots get more attention."""
    panel, draw, factor = _dark_panel(inside)
    weights = _weights(found)[head]
    places = found.points[head].float().cpu().numpy() * factor
    finest_first = sorted(found.sizes, reverse=True)
    palette = [*LEVELS.values()]
    for i in np.argsort(-weights, axis=None):  # small dots on top
        level, point = np.unravel_index(i, weights.shape)
        color = palette[finest_first.index(found.sizes[level]) % len(palette)]
        radius = max(1.5, 9 * (weights[level, point] / weights.max()) ** 0.5)
        _dot(draw, places[level, point], radius, color)
    _cross(draw, np.array(found.query) * factor)
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


def _cross(draw: ImageDraw.ImageDraw, place: np.ndarray):
    y, x = place
    for dx, dy in ((7, 7), (7, -7)):
        draw.line((x - dx, y - dy, x + dx, y + dy), fill=RED, width=3)


def _panel_size(inside: Inside) -> tuple[tuple[int, int], float]:
    """Return the width and height of a panel, and its pixels for one of the model's."""
    height, width = inside.picture.shape[:2]
    factor = PANEL_SIDE / max(height, width)
    return (max(1, round(width * factor)), max(1, round(height * factor))), factor


def _without_padding(panel: Image.Image, inside: Inside, factor: float) -> np.ndarray:
    height, width = (max(1, round(side * factor)) for side in inside.size)
    return np.asarray(panel.crop((0, 0, width, height)))
