"""Say what the tables and figures of a paper show, and what ours is beside it.

A file of `docs/papers` has the tables and figures of a paper, by name:

    shows     what it shows
    tables    the tables of the paper's file in `tools/papers` with its counts
    command   a command that makes our side, beside the one that counts
    state     what is measured, what is missing and why
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tools.dev.markdown import markdown
from tools.papers.tables import (
    KINDS,
    equals_as_printed,
    omitted_rows,
    paper_rows,
    papers,
)

FOLDER = Path(__file__).parents[2] / 'docs/papers'


def exhibits(name: str) -> str:
    """Return a table with one row for each table and figure of a paper."""
    (paper,) = (paper for paper in papers() if paper['file'] == name)
    counted, omitted = paper_rows(), omitted_rows()
    rows = [['', 'shows', 'command', 'state']]
    content = yaml.safe_load((FOLDER / f'{name}.yml').read_text())
    for title, exhibit in content.items():
        code = '<br>'.join(f'`{command}`' for command in commands(name, exhibit))
        tables = exhibit.get('tables', [])
        sources = [f'{paper["cited_as"]}, {table}' for table in tables]
        found = [*agreement(sources, counted), *reasons(sources, omitted)]
        state = '; '.join([*found, exhibit['state']])
        rows.append([title, exhibit['shows'], code, state])
    return markdown(rows)


def commands(paper: str, exhibit: Mapping) -> list[str]:
    """Return the commands that make our side of a table or figure."""
    counting = ['python -m tools.papers.compare', paper]
    counting += map(shlex.quote, exhibit.get('tables', []))
    found = [' '.join(counting)] if 'tables' in exhibit else []
    return found + [exhibit['command']] if 'command' in exhibit else found


def agreement(sources: Sequence[str], rows: Sequence[Mapping]) -> list[str]:
    """Return a phrase on how many counts of ours equal the sources', or none."""
    figures = [
        row[kind]
        for row in rows
        if row['source'] in sources and 'reading_of' not in row
        for kind in KINDS
        if kind in row
    ]
    different = [figure for figure in figures if not equals_as_printed(figure)]
    equal = len(figures) - len(different)
    if not figures:
        return []
    subject = {1: 'the count', 2: 'both counts'}.get(
        len(figures), f'all {len(figures)} counts'
    )
    if not different:
        return [f'{subject} {"is" if len(figures) == 1 else "are"} equal']
    most = max(abs(figure['deviation']) for figure in different)
    by = f'differs by {most} %' if len(different) == 1 else f'differ by up to {most} %'
    if not equal:
        return [f'{subject} {by}']
    rest = 'the other' if len(different) == 1 else 'the others'
    return [f'{equal} of {len(figures)} counts are equal, {rest} {by}']


def reasons(sources: Sequence[str], rows: Sequence[Mapping]) -> list[str]:
    """Return phrases on the rows of the sources that are left out, by reason."""
    found = {}
    for row in rows:
        if row['source'] in sources:
            found.setdefault(row['omitted'], []).append(row['name'])
    return [
        f'{len(names)} {"row" if len(names) == 1 else "rows"} left out ({reason})'
        for reason, names in found.items()
    ]
