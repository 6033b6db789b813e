"""Count the networks of a paper's tables, and print ours beside the paper's figures.

    python -m tools.papers.compare ivit              all tables of ivit.yml
    python -m tools.papers.compare ivit 'Table 5'    one of them

A figure of ours equals the paper's if it rounds to what the paper prints. Notes below
the tables say what is known about the others. The tool exits with 1 if a count differs
from the one that the file records as `ours`.

Each network is built on the meta device, so that nothing is downloaded, and large
detectors take seconds.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import mmattn  # noqa: F401  makes mmcv's operators available
from mmattn.cli.terminal import command_parser, run_main
from tools.papers.counts import UNITS, count_row
from tools.papers.tables import (
    PAPERS,
    equals_as_printed,
    omitted_rows,
    paper_rows,
    papers,
)

ROOT = Path(__file__).resolve().parents[2]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    names = sorted(path.stem for path in PAPERS.glob('*.yml'))
    parser.add_argument('paper', choices=names, help='file of the paper')
    parser.add_argument('tables', nargs='*', metavar='TABLE', help='default: all')
    args = parser.parse_args(argv)
    (paper,) = (p for p in papers() if p['file'] == args.paper)
    printed = [*paper.get('tables', {})]
    if unknown := [table for table in args.tables if table not in printed]:
        parser.error(f'no {unknown[0]!r} in {args.paper}.yml; it has {printed}')
    args.sources = [f'{paper["cited_as"]}, {t}' for t in args.tables or printed]
    return args


def lines(row: Mapping) -> Iterator[tuple[list[str], str]]:
    """Yield the cells of each figure of a row, and what is not as recorded."""
    for kind, value in count_row(row, ROOT).items():
        if kind not in row:
            continue
        figure, ours = row[kind], value / UNITS[kind]
        deviation = 100 * (ours / figure['paper'] - 1)
        equal = 'yes' if equals_as_printed(dict(figure, ours=ours)) else 'no'
        cells = [
            figure['printed'],
            f'{ours:.6g}',
            f'{deviation:+.1f}',
            equal,
        ]
        recorded = value == round(figure['ours'] * UNITS[kind])
        moved = '' if recorded else f'{row["name"]}: {kind} {ours}'
        yield [row['name'], kind, *cells], moved


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    console, moved = Console(), []
    for source in args.sources:
        table = Table(
            'row', 'of', 'paper', 'ours', '%', 'equal', title=source, box=None
        )
        notes = {}
        for row in paper_rows():
            if row['source'] != source:
                continue
            for cells, change in lines(row):
                table.add_row(*cells)
                moved += [change] if change else []
            if 'note' in row:
                notes.setdefault(row['note'], []).append(row['name'])
        for row in omitted_rows():
            if row['source'] == source:
                table.add_row(row['name'], *['', '-', '-', '', 'left out'])
                notes.setdefault(row['omitted'], []).append(row['name'])
        console.print(table)
        for note, names in notes.items():
            console.print(f'{", ".join(names)}: {note}', soft_wrap=True)
    if moved:
        print('not as recorded:', *moved, sep='\n', file=sys.stderr)
    return 1 if moved else 0


if __name__ == '__main__':
    run_main(main)
