"""Draw each csv file of the benchmarks to a png of the same name beside it.

    python tools/benchmark/plot.py docs/benchmarks/*.csv

What `op.py` wrote becomes time and memory against the number of tokens, a line for each
method; what `model.py` and `train_step.py` wrote becomes bars.
"""

import argparse
import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

MAX_LABEL = 40  # longer ones stand in two columns
# timm's PVT v2 is `pvt_v2_`.
OUR_NAMES = (
    *('ivit_', 'lisanet_', 'mait_', 'dat_', 'datpp_', 'pvtv2_'),
    *('pvt_t', 'pvt_s', 'pvt_m', 'pvt_l'),
)
OURS = '#b5312f'
PEERS = '#6f7f8f'
# In the order in which they run.
PHASES = {
    'data_ms': '#c9c9c9',
    'forward_ms': '#5b8db8',
    'backward_ms': '#2f4b7c',
    'optimizer_ms': '#d39b3a',
}


def numbers(rows: list[dict], column: str) -> list[float]:
    return [float(row[column]) for row in rows]


def is_ours(model: str) -> bool:
    return any(name in model for name in OUR_NAMES)


def caption(row: dict) -> str:
    """Describe the machine and the versions that the numbers come from."""
    return (
        f'{row["machine"]}, {row["threads"]} threads, {row["dtype"]}, '
        f'batch {row["batch"]}, torch {row["torch"]}, commit {row["commit"]}, '
        f'{row["date"]}'
    )


def draw_scaling(rows: list[dict]) -> Figure:
    """Time and memory against the tokens, for each pass."""
    passes = list(dict.fromkeys(row['pass'] for row in rows))
    methods = list(dict.fromkeys(row['method'] for row in rows))
    measured = {'ms': 'time (ms)', 'peak_mib': 'peak memory (MiB)'}
    figure, axes = plt.subplots(
        len(measured), len(passes), figsize=(10, 7.5), sharex=True, sharey='row'
    )
    for line, (column, label) in zip(axes, measured.items(), strict=True):
        for axis, which in zip(line, passes, strict=True):
            for i, method in enumerate(methods):
                found = [
                    row
                    for row in rows
                    if (row['method'], row['pass']) == (method, which) and row[column]
                ]
                ours = method.split()[0] in rows[0]['operator']
                axis.plot(
                    numbers(found, 'tokens'),
                    numbers(found, column),
                    label=method,
                    marker='o' if ours else 's',
                    markersize=4,
                    linestyle='-' if ours else '--',
                    color=f'C{i}',
                )
            axis.set(xscale='log', yscale='log')
            axis.grid(which='major', alpha=0.3)
        line[0].set_ylabel(label)
    tokens = sorted({int(row['tokens']) for row in rows})
    for axis, which in zip(axes[0], passes, strict=True):
        axis.set_title(which)
    for axis in axes[-1]:
        axis.set_xlabel('tokens')
        axis.set_xticks(tokens, [f'{n:,}' for n in tokens], rotation=30)
        axis.minorticks_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    ncols = 3 if max(map(len, labels)) < MAX_LABEL else 2
    figure.legend(handles, labels, loc='outside upper center', ncols=ncols)
    return figure


def draw_throughput(rows: list[dict]) -> Figure:
    """Draw images per second of each model and pass, and the speedups."""
    passes = list(dict.fromkeys(row['pass'] for row in rows))
    models = list(dict.fromkeys(row['model'] for row in rows))
    figure, axes = plt.subplots(
        1, len(passes), figsize=(11, 1 + 0.45 * len(models)), sharey=True
    )
    for axis, which in zip(axes, passes, strict=True):
        found = [row for row in rows if row['pass'] == which]
        names = [row['model'] for row in found]
        bars = axis.barh(
            names,
            numbers(found, 'images_per_s'),
            color=[OURS if is_ours(name) else PEERS for name in names],
        )
        axis.bar_label(
            bars,
            [
                f'{row["images_per_s"]}'
                + (f'  ({row["speedup"]}x)' if row['speedup'] else '')
                for row in found
            ],
            padding=3,
            fontsize=8,
        )
        axis.margins(x=0.25)
        axis.set(title=f'{which}, {found[0]["size"]} x {found[0]["size"]}')
        axis.set_xlabel('images a second')
    axes[0].invert_yaxis()
    return figure


def draw_phases(rows: list[dict]) -> Figure:
    """Draw the phases of a training step as a stacked bar."""
    figure, axis = plt.subplots(figsize=(10, 1.4 + 0.6 * len(rows)))
    names, start = [row['config'] for row in rows], [0.0] * len(rows)
    for column, color in PHASES.items():
        width = numbers(rows, column)
        label = column.removesuffix('_ms')
        bars = axis.barh(names, width, left=start, color=color, label=label)
        start = [a + b for a, b in zip(start, width, strict=True)]
    axis.bar_label(
        bars,
        [f'{row["step_ms"]} ms  ({row["speedup"]}x)' for row in rows],
        padding=3,
        fontsize=8,
    )
    axis.margins(x=0.25)
    axis.invert_yaxis()
    size = rows[0]['size']
    size = size if 'x' in size else f'{size} x {size}'
    axis.set_xlabel(f'milliseconds of a training step, {size}')
    figure.legend(loc='outside upper center', ncols=len(PHASES))
    return figure


# A column that only one kind of csv has, and how that kind is drawn.
KINDS = {
    'tokens': draw_scaling,
    'images_per_s': draw_throughput,
    'step_ms': draw_phases,
}


def draw(path: Path) -> Path:
    """Draw one csv file, and return the path of the png.

    Raises:
        ValueError: the file has no rows, or none of the benchmarks wrote it.
    """
    with path.open(newline='') as file:
        rows = list(csv.DictReader(file))
    kinds = [kind for column, kind in KINDS.items() if rows and column in rows[0]]
    if not kinds:
        raise ValueError(f'{path} is not the csv of a benchmark: no {list(KINDS)}')
    figure = kinds[0](rows)
    figure.set_layout_engine('constrained')
    figure.supxlabel(caption(rows[0]), fontsize=8, color='0.4')
    out_file = path.with_suffix('.png')
    figure.savefig(out_file, dpi=120)
    plt.close(figure)
    return out_file


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('csv', nargs='+', type=Path)
    for path in parser.parse_args(argv).csv:
        try:
            print(f'wrote {draw(path)}')
        except (OSError, ValueError) as error:
            sys.exit(f'plot: {error}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
