"""Draw each csv file of the benchmarks to a png of the same name beside it.

    python -m tools.benchmark.plot docs/benchmarks/*.csv

What `op.py` wrote becomes time and memory against the number of tokens, a line for each
method; what `model.py` and `train_step.py` wrote becomes bars. Ratios follow from the
drawn values.
"""

import argparse
import io
import textwrap
from pathlib import Path

import matplotlib

from mmattn.cli.terminal import run_main
from mmattn.errors import UserError
from tools.benchmark.measure import read_csv

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

# Inches, of which a phone shows 358 pixels: 10 points, matplotlib's default, have 9.
WIDTH = 5.5
MAX_LABEL = 24  # longer ones stand in one column
MAX_NOTE = 60  # characters of a line
# timm's PVT v2 is `timm://pvt_v2_b2`.
OUR_NAMES = (*('mmattn_', 'ivit_', 'lisanet_', 'mait_', 'dat_', 'pvt_'),)
OURS = '#b5312f'
PEERS = '#6f7f8f'
OUR_COLORS = ('#b5312f', '#e08214', '#7b3294', '#c51b7d', '#8c510a', '#f1a340')
PEER_COLORS = ('#2166ac', '#1b7837', '#35978f', '#67a9cf', '#542788', '#4d4d4d')
MARKERS = 'osD^vPX*<>'
# In the order in which they run.
PHASES = {
    'data_ms': '#c9c9c9',
    'forward_ms': '#5b8db8',
    'backward_ms': '#2f4b7c',
    'optimizer_ms': '#d39b3a',
}
NOTES = {
    'deformable_attention': 'scaled_dot_product_attention adds no position bias, '
    'unlike the other methods.'
}


def numbers(rows: list[dict], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


def is_ours(model: str) -> bool:
    ours = any(name in model for name in OUR_NAMES)
    return ours and not model.startswith('timm://')


def is_our_method(method: str, operator: str) -> bool:
    """Tell our backends, definitions and layers from peers.

    Names of backends and definitions begin like the operator's, names of layers with
    `mmattn`.
    """
    name = method.split()[0]
    return name == 'mmattn' or name.startswith(operator) or operator.startswith(name)


def text_of(value: float) -> str:
    """Format a measured number with three digits, or as an integer above 1000."""
    return f'{value:,.0f}' if abs(value) >= 999.5 else f'{value:.3g}'


def size_of(row: dict) -> str:
    """Return height and width of the images; one number stands for both."""
    size = row['size']
    return size if 'x' in size else f'{size} x {size}'


def caption(rows: list[dict]) -> str:
    """Describe the machine and the versions that the numbers come from."""
    row = rows[0]
    count = row['threads']
    about = row['machine'], row.get('isa')
    about += ('1 thread' if count == '1' else f'{count} threads',)
    about += ('CPU time' if row.get('clock') == 'cpu' else '',)
    about += row['dtype'], f'batch {row["batch"]}', f'torch {row["torch"]}'
    about += f'commit {row["commit"]}', row['date']
    note = NOTES.get(row.get('operator'), '')
    return '\n'.join(filter(None, (', '.join(filter(None, about)), note)))


def of_passes(rows: list[dict]) -> dict[str, list[dict]]:
    """Return the rows of each pass."""
    passes = dict.fromkeys(row['pass'] for row in rows)
    return {which: [row for row in rows if row['pass'] == which] for which in passes}


def styles_of(methods: list[str], operator: str) -> dict[str, dict]:
    """Return line styles: ours solid, peers dashed, and the first ones wide below.

    A line that coincides with another stays visible, as a wide or as a narrow one.
    """
    styles, ours, peers = {}, iter(OUR_COLORS * 2), iter(PEER_COLORS * 2)
    for i, method in enumerate(methods):
        mine, last = is_our_method(method, operator), len(methods) - 1
        styles[method] = dict(
            color=next(ours if mine else peers),
            linestyle='-' if mine else (2.5 * i, (4, 2)),
            linewidth=1.2 + 2.8 * (last - i) / max(last, 1),
            marker=MARKERS[i % len(MARKERS)],
            markersize=4 + 4 * (last - i) / max(last, 1),
            markeredgecolor='white',
            markeredgewidth=0.5,
            zorder=2 + i,
        )
    return styles


def label_log(axis: Axis):
    """Label powers of ten as plain numbers, of a short axis also 2 and 5 times them."""

    def minor(value: float, _) -> str:
        low, high = axis.get_view_interval()
        return text_of(value) if high < 1e3 * low and f'{value:e}'[0] in '25' else ''

    axis.set_major_formatter(lambda value, _: text_of(value))
    axis.set_minor_formatter(minor)


def draw_scaling(rows: list[dict]) -> Figure:
    """Draw time and memory against the tokens."""
    styles = styles_of(
        list(dict.fromkeys(row['method'] for row in rows)), rows[0]['operator']
    )
    passes = of_passes(rows)
    size = WIDTH, 6.5 + 0.2 * len(styles)
    shared = dict(figsize=size, squeeze=False, sharex=True, sharey='row')
    figure, axes = plt.subplots(2, len(passes), **shared)
    for line, (column, label) in zip(
        axes, (('ms', 'time (ms)'), ('peak_mib', 'peak memory (MiB)')), strict=True
    ):
        line[0].set_ylabel(label)
        for axis, of_pass in zip(line, passes.values(), strict=True):
            for method, style in styles.items():
                found = [r for r in of_pass if r['method'] == method and r[column]]
                x, y = numbers(found, 'tokens'), numbers(found, column)
                axis.plot(x, y, label=method, **style)
            axis.set(xscale='log', yscale='log')
            axis.grid(which='major', alpha=0.3)
            label_log(axis.yaxis)
    for axis, which in zip(axes[0], passes, strict=True):
        axis.set_title(which)
    tokens = sorted({int(row['tokens']) for row in rows})
    for axis in axes[-1]:
        axis.set_xlabel('tokens')
        axis.set_xticks(tokens, [f'{n:,}' for n in tokens], rotation=30)
        axis.minorticks_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    looks = {'solid: mmattn': '-', 'dashed: peers': (0, (4, 2))}
    handles += [Line2D([], [], color='0.2', linestyle=look) for look in looks.values()]
    ncols = 2 if max(map(len, labels)) < MAX_LABEL else 1
    place = dict(loc='outside upper center', ncols=ncols, handlelength=4)
    figure.legend(handles, [*labels, *looks], **place)
    return figure


def with_ratio(value: float, baseline: float | None, text: str) -> str:
    """Append the speed beside the baseline, where there is one."""
    return text if baseline is None else f'{text}  ({value / baseline:.2f}x)'


def draw_throughput(rows: list[dict]) -> Figure:
    """Draw images per second of each model and pass."""
    passes = of_passes(rows)
    height = 1 + (1 + 0.3 * len({row['model'] for row in rows})) * len(passes)
    figure, axes = plt.subplots(len(passes), figsize=(WIDTH, height), squeeze=False)
    for axis, (which, found) in zip(axes[:, 0], passes.items(), strict=True):
        names, speeds = [r['model'] for r in found], numbers(found, 'images_per_s')
        colors = [OURS if is_ours(name) else PEERS for name in names]
        bars = axis.barh(names, speeds, color=colors)
        baseline = dict(zip(names, speeds, strict=True)).get(found[0]['baseline'])
        labels = [with_ratio(speed, baseline, text_of(speed)) for speed in speeds]
        axis.bar_label(bars, labels, padding=3)
        axis.margins(x=0.6)
        axis.invert_yaxis()
        axis.set_title(f'{which}, {size_of(found[0])}')
        axis.set_xlabel('images a second')
    owners = [Patch(color=OURS, label='mmattn'), Patch(color=PEERS, label='peers')]
    figure.legend(handles=owners, loc='outside upper center', ncols=2)
    return figure


def draw_phases(rows: list[dict]) -> Figure:
    """Draw the phases of a training step as a stacked bar."""
    figure, axis = plt.subplots(figsize=(WIDTH, 2 + 0.55 * len(rows)))
    names, start = [row['config'] for row in rows], [0.0] * len(rows)
    for column, color in PHASES.items():
        width = numbers(rows, column)
        label = column.removesuffix('_ms')
        bars = axis.barh(names, width, 0.45, start, color=color, label=label)
        start = [a + b for a, b in zip(start, width, strict=True)]
    baseline = dict(zip(names, start, strict=True)).get(rows[0]['baseline'])
    labels = [
        with_ratio(1 / step, baseline and 1 / baseline, f'{text_of(step)} ms')
        for step in start
    ]
    axis.bar_label(bars, labels, padding=3)
    for i, name in enumerate(names):
        axis.text(0, i - 0.25, name, va='bottom')
    axis.set_yticks([])
    axis.margins(x=0.45)
    axis.set_ylim(len(names) - 0.6, -0.75)
    axis.xaxis.set_major_formatter('{x:,.0f}')
    axis.set_xlabel(f'milliseconds of a training step, {size_of(rows[0])}')
    figure.legend(loc='outside upper center', ncols=len(PHASES), columnspacing=1)
    return figure


# A column that only one kind of csv has, and how that kind is drawn.
KINDS = {
    'tokens': draw_scaling,
    'images_per_s': draw_throughput,
    'step_ms': draw_phases,
}


def read(path: Path) -> list[dict]:
    rows = read_csv(path)
    if not rows or not KINDS.keys() & rows[0].keys():
        raise UserError(f'{path} is not the csv of a benchmark: no {list(KINDS)}')
    return rows


def save(figure: Figure, note: str, path: Path) -> Path:
    figure.set_layout_engine('constrained')
    lines = '\n'.join(textwrap.fill(line, MAX_NOTE) for line in note.splitlines())
    figure.supxlabel(lines, fontsize='medium', color='0.4')
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120)
    plt.close(figure)
    # A palette takes a third of the bytes. Lines and text look the same.
    picture = Image.open(drawn).convert('RGB')
    picture = picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    return path


def draw(path: Path) -> Path:
    """Draw a csv file, and return the path of the png.

    Raises:
        ValueError: the file has no rows, or none of the benchmarks wrote it.
    """
    rows = read(path)
    draw_rows = next(kind for column, kind in KINDS.items() if column in rows[0])
    return save(draw_rows(rows), caption(rows), path.with_suffix('.png'))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('csv', nargs='+', type=Path, help='csv files')
    for path in parser.parse_args(argv).csv:
        print(f'wrote {draw(path)}')
    return 0


if __name__ == '__main__':
    run_main(main)
