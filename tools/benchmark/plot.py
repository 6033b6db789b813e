"""Draw each csv file of `op.py` to a png of the same name beside it.

    python -m tools.benchmark.plot docs/benchmarks/*_attention_cpu.csv

It shows time and memory against the number of tokens, a line for each method.
"""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from mmattn.cli.terminal import command_parser, run_main
from mmattn.errors import UserError
from mmattn.images.draw import label_log, styled
from tools.benchmark.measure import read_csv

WIDTH = 5.5  # inches, of which a phone shows 358 pixels
MAX_LABEL, MAX_NOTE = 24, 75  # characters of a label in two columns, and of a line
MARKERS = 'osD^vPX*<>'
NOTES = {
    'deformable_attention': 'scaled_dot_product_attention adds no position bias, '
    'unlike the other methods.'
}


def numbers(rows: Sequence[dict], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


def is_our_method(method: str, operator: str) -> bool:
    """Tell our backends, definitions and layers from peers by their names."""
    name = method.split()[0]
    return name == 'mmattn' or name.startswith(operator) or operator.startswith(name)


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


def draw_scaling(rows: Sequence[dict]) -> Figure:
    """Draw time and memory against the tokens: ours solid, peers dashed."""
    methods = list(dict.fromkeys(row['method'] for row in rows))
    operator, passes = rows[0]['operator'], {}
    for row in rows:
        passes.setdefault(row['pass'], []).append(row)
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


@styled
def draw(path: Path) -> Path:
    """Draw a csv file, and return the path of the png.

    Raises:
        ValueError: the file has no rows of `op.py`.
    """
    rows = read_csv(path)
    if not rows or 'tokens' not in rows[0]:
        raise UserError(f'{path} has no rows of tools.benchmark.op')
    figure = draw_scaling(rows)
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
