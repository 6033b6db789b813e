"""Draw results of the model zoo against each other, such as accuracy against FLOPs.

    draw_results.py --panel classification 'Top 1 Accuracy' --x FLOPs \\
        --series iViT 'ivit_*' --series LiSANet 'lisanet_[sb]_300e_*'

draws a panel for each `--panel FOLDER QUANTITY`, with a line for each `--series LABEL
PATTERNS`: the models of configs/FOLDER whose names match one of the patterns, which
commas separate. A QUANTITY, also for `--x`, is a metric of the metafile, Parameters,
FLOPs, or `layers`, the number of a plain network's blocks. Models without the quantity
are left out. A csv file beside the picture has the points.

Filled markers are metrics that this project measured, and counts. Open markers are
metrics that others report.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import matplotlib
import yaml

from mmattn.cli.terminal import run_main
from mmattn.errors import UserError

matplotlib.use('Agg')
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
UNITS = {'Parameters': (1e6, 'parameters (M)'), 'FLOPs': (1e9, 'FLOPs (G)')}
MEASURED, REPORTED, COUNTED = 'measured', 'reported', 'counted'
MARKERS = 'osD^vPX*<>'
PANEL_INCHES = 3.4, 3.2


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--panel',
        dest='panels',
        nargs=2,
        action='append',
        required=True,
        metavar=('FOLDER', 'QUANTITY'),
    )
    parser.add_argument('--x', required=True, metavar='QUANTITY')
    parser.add_argument(
        '--series',
        nargs=2,
        action='append',
        required=True,
        metavar=('LABEL', 'PATTERNS'),
    )
    parser.add_argument('--out', type=Path, default=Path('results.png'))
    return parser.parse_args(argv)


def read_models(folder: str) -> list[dict]:
    """Return the models of a folder of configs, as its metafile describes them."""
    metafile = ROOT / 'configs' / folder / 'metafile.yml'
    if not metafile.is_file():
        folders = sorted(
            path.parent.name for path in ROOT.glob('configs/*/metafile.yml')
        )
        raise UserError(f'a folder of --panel must be one of {folders}, got {folder!r}')
    return yaml.safe_load(metafile.read_text())['Models']


def quantity(model: Mapping, name: str) -> tuple[float, str] | None:
    """Return a quantity of a model, and where it is from, or None if it has none."""
    if name == 'layers':
        return count_layers(ROOT / model['Config']), COUNTED
    if name in UNITS:
        return model['Metadata'][name] / UNITS[name][0], COUNTED
    for source, key in ((MEASURED, 'Results'), (REPORTED, 'Paper Results')):
        for result in model.get(key, ()):
            if name in result['Metrics']:
                return result['Metrics'][name], source
    return None


def count_layers(config: Path) -> int:
    """Return the number of blocks of a plain network."""
    from mmengine.config import Config
    from torch import nn

    from mmattn.analysis.flops import build

    backbone = build(Config.fromfile(config)).backbone
    lists = [
        part
        for name, part in backbone.named_modules()
        if name.endswith('blocks')
        and not any(
            isinstance(each, nn.ModuleList | nn.Sequential) for each in part.children()
        )
    ]
    if len(lists) != 1:
        raise UserError(
            f'layers: the network of {config.name} must have one list of blocks, '
            f'got {len(lists)}'
        )
    return len(lists[0])


def points(
    folder: str, y: str, x: str, series: Sequence[tuple[str, str]]
) -> dict[str, list[tuple[float, float, str, str]]]:
    """Return x, y, name and source of the models of each series, in the order of x.

    Raises:
        ValueError: no model of any series has the quantities.
    """
    models = read_models(folder)
    found = {}
    for label, patterns in series:
        rows = []
        for model in models:
            if any(fnmatch(model['Name'], pattern) for pattern in patterns.split(',')):
                value = quantity(model, y)
                place = quantity(model, x) if value else None
                if place:
                    rows.append((place[0], value[0], model['Name'], value[1]))
        found[label] = sorted(rows)
    if not any(found.values()):
        metrics = {m for model in models for r in results(model) for m in r['Metrics']}
        raise UserError(
            f'no model of configs/{folder} in a series has {y!r} and {x!r}; '
            f'quantities are {sorted(metrics)}, {[*UNITS]} and layers; '
            f'models are {[model["Name"] for model in models]}'
        )
    return found


def results(model: Mapping) -> list[dict]:
    return [*model.get('Results', ()), *model.get('Paper Results', ())]


def axis_label(name: str, sources: set[str]) -> str:
    reported = ' (reported)' if sources == {REPORTED} else ''
    return UNITS[name][1] if name in UNITS else f'{name}{reported}'


def draw(panels: Sequence[tuple[str, str, dict]], x: str, path: Path):
    width, height = PANEL_INCHES
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(width * len(panels), height),
        layout='constrained',
        squeeze=False,
    )
    for axis, (folder, y, found) in zip(axes.flat, panels, strict=True):
        for number, (label, rows) in enumerate(found.items()):
            if not rows:
                continue
            color, marker = f'C{number % 10}', MARKERS[number % len(MARKERS)]
            xs, ys = [row[0] for row in rows], [row[1] for row in rows]
            axis.plot(xs, ys, color=color, lw=1)
            fills = [color if row[3] != REPORTED else 'white' for row in rows]
            axis.scatter(xs, ys, c=fills, marker=marker, edgecolors=color, zorder=3)
            axis.plot([], [], color=color, marker=marker, mfc=fills[0], label=label)
        sources = {row[3] for rows in found.values() for row in rows}
        axis.set(
            xlabel=axis_label(x, set()), ylabel=axis_label(y, sources), title=folder
        )
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(panels: Sequence[tuple[str, str, dict]], x: str, path: Path):
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(['folder', 'series', 'model', x, 'quantity', 'value', 'source'])
        for folder, y, found in panels:
            for label, rows in found.items():
                for place, value, name, source in rows:
                    numbers = f'{place:.6g}', y, f'{value:.6g}'
                    writer.writerow([folder, label, name, *numbers, source])


def main(argv: Sequence[str] | None = None):
    args = parse_args(argv)
    panels = [(f, y, points(f, y, args.x, args.series)) for f, y in args.panels]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(panels, args.x, args.out)
    write(panels, args.x, args.out.with_suffix('.csv'))
    print(f'results: {args.out}, {args.out.with_suffix(".csv")}')


if __name__ == '__main__':
    run_main(main)
