"""Count the networks of a paper's tables, and print ours beside the paper's figures.

    python -m tools.papers.compare ivit              all tables of ivit.yml
    python -m tools.papers.compare ivit 'Table 5'    one of them

A figure of ours equals the paper's if it rounds to what the paper prints. Notes below
the tables say what is known about the others. Each network is built on the meta device,
so that nothing is downloaded, and large detectors take seconds. A slow test compares
the counts with those that the file records as `ours`.
"""

from collections.abc import Sequence
from pathlib import Path

import mmattn  # noqa: F401  makes mmcv's operators available
from mmattn.cli.terminal import command_parser, run_main
from tools.dev.markdown import markdown
from tools.papers.counts import count_row
from tools.papers.tables import (
    PAPERS,
    UNITS,
    equals_as_printed,
    omitted_rows,
    paper_rows,
    papers,
)

ROOT = Path(__file__).resolve().parents[2]


def comparison(source: str) -> str:
    """Return the table of a source, and the notes on its rows."""
    table, notes = [['row', 'of', 'paper', 'ours', '%', 'equal']], {}
    for row in paper_rows():
        if row['source'] != source:
            continue
        for kind, value in count_row(row, ROOT).items():
            if figure := row.get(kind):
                ours = value / UNITS[kind]
                equal = equals_as_printed(dict(figure, ours=ours))
                deviation = f'{100 * (ours / figure["paper"] - 1):+.1f}'
                line = [row['name'], kind, figure['printed'], f'{ours:.6g}', deviation]
                table.append([*line, 'yes' if equal else 'no'])
        if 'note' in row:
            notes.setdefault(row['note'], []).append(row['name'])
    for row in omitted_rows():
        if row['source'] == source:
            notes.setdefault(f'left out: {row["omitted"]}', []).append(row['name'])
    lines = (f'{", ".join(names)}: {note}' for note, names in notes.items())
    return '\n'.join([source, '', markdown(table), *lines, ''])


def main(argv: Sequence[str] | None = None):
    parser = command_parser(__doc__)
    names = sorted(path.stem for path in PAPERS.glob('*.yml'))
    parser.add_argument('paper', choices=names, help='file of the paper')
    parser.add_argument('tables', nargs='*', metavar='TABLE', help='default: all')
    args = parser.parse_args(argv)
    (paper,) = (p for p in papers() if p['file'] == args.paper)
    printed = [*paper.get('tables', {})]
    if unknown := [table for table in args.tables if table not in printed]:
        parser.error(f'no {unknown[0]!r} in {args.paper}.yml; it has {printed}')
    for table in args.tables or printed:
        print(comparison(f'{paper["cited_as"]}, {table}'))


if __name__ == '__main__':
    run_main(main)
