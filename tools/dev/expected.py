"""Tables of what a training on a small data set gives after some CPU minutes.

The rows come from `python -m projects.evidence.small_data`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean

from tools.benchmark.measure import ROOT, read_csv
from tools.dev.choose import measured
from tools.dev.markdown import markdown

ROWS = ROOT / 'docs/evidence/small_data.csv'
RECIPE = 'jitter ema'  # that configs are written with
NAMES = {
    'hela': 'HeLa nuclei, 180 images of 256 x 256',
    'blood': 'blood cells, 205 images of 480 x 640',
    'scenes': 'scenes of clothes, 4,000 images of 128 x 128',
    'landcover': 'land cover, 148 images of 192 x 192',
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


def expected(words: list[str], path: Path = ROWS) -> str:
    """Return the metrics of the written recipe, a line for each data set and length."""
    rows = [row for row in read_csv(path) if row['parts'] == RECIPE]
    networks = dict.fromkeys((row['network'], row['start']) for row in rows)
    head = ['data', 'CPU minutes', 'metric']
    lines = [[*head, *(f'`{name}`, {start}' for name, start in networks)]]
    for data, factor, minutes, metric in dict.fromkeys(map(_place, rows)):
        size = '' if factor == '1.0' else f', resized by {factor}'
        line = [NAMES[data] + size, f'{float(minutes):g}', METRICS[metric][1]]
        for network in networks:
            line.append(
                spread(
                    row
                    for row in rows
                    if _place(row) == (data, factor, minutes, metric)
                    and (row['network'], row['start']) == network
                )
            )
        lines.append(line)
    return f'{markdown(lines)}\nMeasured on: {measured(rows)}.\n'


def _place(row: Mapping) -> tuple[str, str, str, str]:
    return row['data'], row['factor'], row['minutes'], row['metric']
