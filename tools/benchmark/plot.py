"""Draw each csv file of the benchmarks to a png of the same name beside it.

    python -m tools.benchmark.plot docs/benchmarks/*.csv

What `op.py` wrote becomes time and memory against the number of tokens, a line for each
method; what `model.py` and `train_step.py` wrote becomes bars.
"""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from mmattn.cli.terminal import command_parser, run_main
from mmattn.errors import UserError
from mmattn.images.draw import label_log, styled
from tools.benchmark.measure import read_csv

WIDTH = 5.5  # inches, of which a phone shows 358 pixels
MAX_LABEL, MAX_NOTE = 24, 75  # characters of a label in two columns, and of a line
OURS, PEERS = 'C3', '0.5'
MARKERS = 'osD^vPX*<>'
# timm's PVT v2 is `timm://pvt_v2_b2`.
OUR_NAMES = 'mmattn_', 'ivit_', 'lisanet_', 'mait_', 'dat_', 'pvt_'
PHASES = 'data_ms', 'forward_ms', 'backward_ms', 'optimizer_ms'
NOTES = {
    'deformable_attention': 'scaled_dot_product_attention adds no position bias, '
    'unlike the other methods.'
}


def numbers(rows: Sequence[dict], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


def is_ours(model: str) -> bool:
    ours = any(name in model for name in OUR_NAMES)
    return ours and not model.startswith('timm://')


def is_our_method(method: str, operator: str) -> bool:
    """Tell our backends, definitions and layers from peers by their names."""
    name = method.split()[0]
    return name == 'mmattn' or name.startswith(operator) or operator.startswith(name)


def size_of(row: dict) -> str:
    """Return height and width of the images; one number stands for both."""
    size = row['size']
    return size if 'x' in size else f'{size} x {size}'


def caption(rows: Sequence[dict]) -> str:
    """Describe the machine and the versions that the numbers come from."""
    row = rows[0]
    count = row['threads']
    about = row['machine'], row.get('isa')
    about += ('1 thread' if count == '1' else f'{count} threads',)
    about += ('CPU time' if row.get('clock') == 'cpu' else '',)
    about += row['dtype'], f'batch {row["batch"]}', f'torch {row["torch"]}'
    about += f'commit {row["commit"]}', row['date']
    note = NOTES.get(row.get('operator'), '')
    lines = filter(None, (', '.join(filter(None, about)), note))
    return '\n'.join(textwrap.fill(line, MAX_NOTE) for line in lines)


def of_passes(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """Return the rows of each pass."""
    passes = dict.fromkeys(row['pass'] for row in rows)
    return {which: [row for row in rows if row['pass'] == which] for which in passes}


def draw_scaling(rows: Sequence[dict]) -> Figure:
    """Draw time and memory against the tokens: ours solid, peers dashed."""
    methods = list(dict.fromkeys(row['method'] for row in rows))
    operator, passes = rows[0]['operator'], of_passes(rows)
    tokens = sorted({int(row['tokens']) for row in rows})
    figure = Figure((WIDTH, 6 + 0.2 * len(methods)))
    axes = figure.subplots(2, len(passes), squeeze=False, sharex=True, sharey='row')
    columns = ('ms', 'time (ms)'), ('peak_mib', 'peak memory (MiB)')
    for line, (column, label) in zip(axes, columns, strict=True):
        line[0].set_ylabel(label)
        for axis, found in zip(line, passes.values(), strict=True):
            for i, method in enumerate(methods):
                some = [r for r in found if r['method'] == method and r[column]]
                x, y = numbers(some, 'tokens'), numbers(some, column)
                look = '-' if is_our_method(method, operator) else '--'
                marker = MARKERS[i % len(MARKERS)]
                axis.plot(x, y, look, c=f'C{i}', marker=marker, ms=4, label=method)
            axis.set(xscale='log', yscale='log')
            axis.grid(alpha=0.3)
        label_log(line[0].yaxis)
    for axis, which in zip(axes[0], passes, strict=True):
        axis.set_title(which)
    for axis in axes[-1]:
        axis.set_xlabel('tokens')
        axis.set_xticks(tokens, [f'{n:,}' for n in tokens], rotation=30)
        axis.minorticks_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    ncols = 2 if max(map(len, labels)) < MAX_LABEL else 1
    title = 'solid: mmattn, dashed: peers'
    place = dict(loc='outside upper center', ncols=ncols, handlelength=4, title=title)
    figure.legend(handles, labels, **place)
    return figure


def with_ratio(value: float, baseline: float | None, text: str) -> str:
    """Append the speed beside the baseline, where there is one."""
    return text if baseline is None else f'{text}  ({value / baseline:.2f}x)'


def draw_throughput(rows: Sequence[dict]) -> Figure:
    """Draw images per second of each model and pass."""
    passes = of_passes(rows)
    height = 1 + (0.8 + 0.25 * len({row['model'] for row in rows})) * len(passes)
    figure = Figure((WIDTH, height))
    axes = figure.subplots(len(passes), squeeze=False)[:, 0]
    for axis, (which, found) in zip(axes, passes.items(), strict=True):
        names, speeds = [r['model'] for r in found], numbers(found, 'images_per_s')
        colors = [OURS if is_ours(name) else PEERS for name in names]
        baseline = dict(zip(names, speeds, strict=True)).get(found[0]['baseline'])
        labels = [with_ratio(speed, baseline, f'{speed:.3g}') for speed in speeds]
        axis.bar_label(axis.barh(names, speeds, color=colors), labels, padding=3)
        axis.margins(x=0.4)
        axis.invert_yaxis()
        axis.set(title=f'{which}, {size_of(found[0])}', xlabel='images a second')
    owners = [Patch(color=OURS, label='mmattn'), Patch(color=PEERS, label='peers')]
    figure.legend(handles=owners, loc='outside upper center', ncols=2)
    return figure


def draw_phases(rows: Sequence[dict]) -> Figure:
    """Draw the phases of a training step as a stacked bar."""
    figure = Figure((WIDTH, 1.5 + 0.5 * len(rows)))
    axis = figure.subplots()
    names, start = [row['config'] for row in rows], [0.0] * len(rows)
    for column in PHASES:
        width = numbers(rows, column)
        bars = axis.barh(names, width, 0.5, start, label=column.removesuffix('_ms'))
        start = [a + b for a, b in zip(start, width, strict=True)]
    baseline = dict(zip(names, start, strict=True)).get(rows[0]['baseline'])
    labels = [
        with_ratio(1 / step, baseline and 1 / baseline, f'{step:,.0f} ms')
        for step in start
    ]
    axis.bar_label(bars, labels, padding=3)
    axis.set_yticks(
        names, [textwrap.fill(name.replace('_', ' '), 22) for name in names]
    )
    axis.margins(x=0.45)
    axis.invert_yaxis()
    axis.set_xlabel(f'milliseconds of a training step, {size_of(rows[0])}')
    figure.legend(loc='outside upper center', ncols=len(PHASES), columnspacing=1)
    return figure


# A column that only one kind of csv has, and how that kind is drawn.
KINDS = {
    'tokens': draw_scaling,
    'images_per_s': draw_throughput,
    'step_ms': draw_phases,
}


@styled
def draw(path: Path) -> Path:
    """Draw a csv file, and return the path of the png.

    Raises:
        ValueError: the file has no rows, or none of the benchmarks wrote it.
    """
    rows = read_csv(path)
    kind = next((column for column in KINDS if rows and column in rows[0]), None)
    if kind is None:
        raise UserError(f'{path} is not the csv of a benchmark: no {list(KINDS)}')
    figure = KINDS[kind](rows)
    figure.supxlabel(caption(rows), color='0.4')
    drawn = io.BytesIO()
    figure.savefig(drawn)
    # A palette takes a third of the bytes. Lines and text look the same.
    picture = Image.open(drawn).convert('RGB')
    picture = picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    picture.save(path.with_suffix('.png'), optimize=True)
    return path.with_suffix('.png')


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument('csv', nargs='+', type=Path, help='csv files')
    for path in parser.parse_args(argv).csv:
        print(f'wrote {draw(path)}')
    return 0


if __name__ == '__main__':
    run_main(main)
