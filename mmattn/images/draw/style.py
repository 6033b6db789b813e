"""Colors of classes, widths of lines and sizes of texts, the same in all pictures."""

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps

import numpy as np

# The palette of Okabe and Ito, without black; others follow it.
FIRST = {
    'orange': (230, 159, 0),
    'sky blue': (86, 180, 233),
    'green': (0, 158, 115),
    'yellow': (240, 228, 66),
    'blue': (0, 114, 178),
    'vermilion': (213, 94, 0),
    'purple': (204, 121, 167),
}
WHITE, BLACK = (255, 255, 255), (0, 0, 0)  # of marks, which stand out from all colors
MOST = 256  # colors, which then repeat
STEPS = np.linspace(0, 255, 12).round()  # of a channel of a candidate
LIGHTNESS = 0.4, 0.95  # of candidates, which stand out from shadows and white
# Linear RGB as people without the long or the middle cones see it: Machado, Oliveira
# and Fernandes 2009, severity 1.
VIEWS = np.array(
    [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    ]
)
# Linear RGB to cones, and the roots of these to OKLab: Ottosson 2020.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
MIN_LINE = 2  # pixels
LINE_SHARE = 1 / 270  # of the image's shorter side
MIN_TEXT = 10  # pixels
TEXT_SHARE = 1 / 40  # of the image's shorter side
SMALL = 8  # points, of texts beside charts
DPI = 120  # of charts
LINES = ('blue', 'orange', 'green', 'vermilion', 'purple', 'sky blue')  # on white
CHARTS = {  # settings of matplotlib
    'font.size': SMALL,
    'axes.labelsize': SMALL + 1,
    'axes.titlesize': SMALL + 1,
    'figure.titlesize': SMALL + 2,
    'figure.constrained_layout.use': True,
    'savefig.dpi': DPI,
    'savefig.bbox': 'tight',
    'axes.prop_cycle': 'cycler("color", {})'.format(
        ['#{:02x}{:02x}{:02x}'.format(*FIRST[name]) for name in LINES]
    ),
}


def styled(draw: Callable) -> Callable:
    """Return a function whose charts have the settings of `CHARTS`."""

    @wraps(draw)
    def call(*args, **kwargs):
        import matplotlib

        with matplotlib.rc_context(CHARTS):
            return draw(*args, **kwargs)

    return call


def seen_colors(colors: Sequence[Sequence[int]]) -> np.ndarray:
    """Return RGB colors of shape (n, 3) in OKLab, as three kinds of eyes see them.

    Shape (3, n, 3): of usual eyes, and of those without long or middle cones. Colors
    with a distance of 0.02 are hard to tell apart.
    """
    values = np.asarray(colors, float) / 255
    linear = np.where(
        values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4
    )
    seen = (linear @ VIEWS.transpose(0, 2, 1)).clip(0, 1)
    return np.cbrt(seen @ TO_CONES.T) @ TO_LAB.T


@lru_cache(maxsize=1)
def _palette() -> list[list[int]]:
    """Return `FIRST`, and colors that are each as far as possible from those before."""
    grid = np.stack(np.meshgrid(STEPS, STEPS, STEPS), -1).reshape(-1, 3).astype(int)
    seen = seen_colors(grid)
    bright = (seen[0, :, 0] > LIGHTNESS[0]) & (seen[0, :, 0] < LIGHTNESS[1])
    grid, seen = grid[bright], seen[:, bright]
    palette, distance, first = [], np.full(len(grid), np.inf), [*FIRST.values()]
    while len(palette) < MOST:
        color = first.pop(0) if first else grid[distance.argmax()]
        palette.append([int(channel) for channel in color])
        away = np.linalg.norm(seen - seen_colors([color]), axis=2).min(0)
        distance = np.minimum(distance, away)
    return palette


def class_colors(count: int) -> list[list[int]]:
    """Return an RGB color for each label, the same one for any `count`.

    Each is as far as possible from those before it, also for people who do not see red
    or green. After 256 they repeat.
    """
    palette = _palette()
    return [palette[i % MOST] for i in range(count)]


def text_color(color: Sequence[int]) -> tuple[int, int, int]:
    """Return black or white, which is read more easily on a color."""
    lightness = seen_colors([color])[0, 0, 0]
    return (0, 0, 0) if lightness > 0.65 else (255, 255, 255)


def line_width(size: Sequence[int], shown: float = 1.0) -> int:
    """Return the width of lines on an image.

    Args:
        size: width and height of the image.
        shown: factor by which the image is shrunk before it is seen.
    """
    return max(round(MIN_LINE / min(shown, 1)), round(min(size) * LINE_SHARE))


def text_height(size: Sequence[int]) -> int:
    """Return the height of texts on an image of a width and height, in pixels."""
    return max(MIN_TEXT, round(min(size) * TEXT_SHARE))
