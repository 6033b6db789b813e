"""Tables of what a training on a small data set gives after some CPU minutes.

The rows come from `python -m projects.evidence.small_data`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean

from tools.benchmark.measure import ROOT, read_csv
from tools.dev.choose import measured
from tools.dev.markdown import markdown

FOLDER = ROOT / 'docs/evidence'
PLACE = 'data', 'images', 'factor', 'minutes', 'parts', 'metric'
NETWORK = 'network', 'start', 'lr'
NAMES = {
    'hela': 'HeLa nuclei, 256 x 256',
    'blood': 'blood cells, 480 x 640',
    'scenes': 'scenes of clothes, 128 x 128',
    'landcover': 'land cover, 192 x 192',
}
METRICS = {
    'coco/segm_mAP': (100, 'AP of masks'),
    'coco/bbox_mAP': (100, 'AP of boxes'),
    'mIoU': (1, 'mIoU'),
}


def spread(rows: Iterable[Mapping]) -> str:
    """Return the mean of the seeds, and their range if there are several."""
    values = [METRICS[row['metric']][0] * float(row['value']) for row in rows]
    if not values:
        return '–'
    text = f'{mean(values):.1f}'
    if len(values) > 1:
        text += f' ({min(values):.1f} to {max(values):.1f}, {len(values)} seeds)'
    return text


def expected(words: list[str], folder: Path = FOLDER) -> str:
    """Return the metrics in a csv file, a line for each data set, length and recipe."""
    rows = [row for name in words for row in read_csv(folder / name)]
    networks = dict.fromkeys(_cells(row, NETWORK) for row in rows)
    head = ['data', 'images', 'CPU minutes', 'recipe', 'metric']
    lines = [[*head, *(f'`{name}`, {start}, {lr}' for name, start, lr in networks)]]
    for place in dict.fromkeys(_cells(row, PLACE) for row in rows):
        data, images, factor, minutes, parts, metric = place
        size = '' if factor == '1.0' else f', resized by {factor}'
        line = [NAMES[data] + size, images, f'{float(minutes):g}']
        line += [parts.replace(' ', ', ') or 'none', METRICS[metric][1]]
        for network in networks:
            line.append(
                spread(
                    row
                    for row in rows
                    if _cells(row, PLACE + NETWORK) == place + network
                )
            )
        lines.append(line)
    return f'{markdown(lines)}\nMeasured on: {measured(rows)}.\n'


def _cells(row: Mapping, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(row[name] for name in names)
