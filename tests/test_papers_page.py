"""Every table and figure of the papers has a row in `docs/papers.md` that works."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmengine')

from mmattn.analysis.paper_tables import papers
from tools.dev.exhibits import agreement, commands, read_exhibits, reasons

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / 'docs/papers').glob('*.yml'))
PAPERS = {paper['file']: paper for paper in papers()}
# Papers whose tables and figures are numbered here, and how many they have.
NUMBERED = {
    'ivit': {'Table': 10, 'Figure': 7},
    'lisa': {'Table': 14, 'Figure': 9},
    'mait': {'Table': 8, 'Figure': 6},
    'pvt': {'Table': 11, 'Figure': 7},
    'pvt_v2': {'Table': 6, 'Figure': 4},
    'deformable_detr': {'Table': 4, 'Figure': 6},
}
by_stem = pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)


def test_every_paper_with_figures_has_a_file():
    with_tables = {name for name, paper in PAPERS.items() if 'tables' in paper}
    assert {path.stem for path in FILES} == with_tables
    page = (ROOT / 'docs/papers.md').read_text()
    assert all(f'<!-- table of papers/{path.name} -->' in page for path in FILES)


@pytest.mark.parametrize('paper', NUMBERED)
def test_no_table_or_figure_is_left_out(paper):
    names = {*read_exhibits(ROOT / f'docs/papers/{paper}.yml')}
    for kind, last in NUMBERED[paper].items():
        assert {f'{kind} {n}' for n in range(1, last + 1)} <= names
        assert f'{kind} {last + 1}' not in names


@by_stem
def test_every_printed_count_is_in_a_row(path):
    rows = read_exhibits(path).values()
    listed = [table for row in rows for table in row.get('tables', [])]
    assert {*listed} == {*PAPERS[path.stem]['tables']}
    for exhibit in rows:
        assert exhibit.keys() <= {'shows', 'tables', 'command', 'state'}
        assert exhibit['shows'] and exhibit['state']


@by_stem
def test_commands_exist(path):
    found = {c for e in read_exhibits(path).values() for c in commands(path.stem, e)}
    for command in sorted(found):
        words = shlex.split(command.removeprefix('PYTHONPATH=. '))
        if words[0] == 'mmattn':
            cli = (ROOT / 'mmattn/cli.py').read_text()
            assert f'\ndef {words[1]}(' in cli, command
            continue
        if words[0] == 'make':
            assert f'\n{words[1]}:' in (ROOT / 'Makefile').read_text(), command
            continue
        assert words[0] == 'python', command
        script = None if words[1] == '-m' else ROOT / words[1]
        assert script is None or script.is_file(), command
        for word in words[1:]:
            if word.startswith(('configs/', 'tests/', 'projects/')):
                assert (ROOT / word).is_file(), command
            elif word.startswith('--') and script is not None:
                options = re.findall(r"'(--[\w-]+)'", options_of(script))
                assert word in options, command


def options_of(script: Path) -> str:
    """Return the source of a script and of the parsers that it imports."""
    texts = [script.read_text()]
    if 'from mmattn.terminal import' in texts[0]:
        texts.append((ROOT / 'mmattn/terminal.py').read_text())
    for name in re.findall(r'^from (\w+) import', texts[0], re.MULTILINE):
        if (beside := script.with_name(f'{name}.py')).is_file():
            texts.append(beside.read_text())
    return '\n'.join(texts)


@by_stem
def test_settings_of_commands_build(path):
    from mmengine.config import Config, DictAction

    from mmattn.registry import MODELS

    for exhibit in read_exhibits(path).values():
        words = shlex.split(exhibit.get('command', ''))
        if '--cfg-options' not in words:
            continue
        (config,) = (word for word in words if word.startswith('configs/'))
        parser = argparse.ArgumentParser()
        parser.add_argument('--cfg-options', nargs='+', action=DictAction)
        given = parser.parse_args(words[words.index('--cfg-options') :])
        cfg = Config.fromfile(ROOT / config)
        cfg.merge_from_dict(given.cfg_options)
        with torch.device('meta'):
            MODELS.build(cfg.model.backbone)


def row(name: str, source: str = 'P, Table 1', **figures) -> dict:
    """Return a row of a paper, with the paper's and our figure by kind."""
    return dict(name=name, source=source) | {
        kind: dict(
            paper=paper,
            printed=str(paper),
            ours=ours,
            deviation=round(100 * (ours / paper - 1), 1),
        )
        for kind, (paper, ours) in figures.items()
    }


EQUAL, NEAR, FAR = (22.0, 22.04), (22.0, 22.05), (1.3, 1.247)


@pytest.mark.parametrize(
    'rows, phrases',
    [
        ([row('a', params=EQUAL)], ['the count is equal']),
        ([row('a', params=NEAR)], ['the count is within 0.2 %']),
        ([row('a', params=EQUAL, flops=EQUAL)], ['both counts are equal']),
        ([row('a', params=NEAR, flops=FAR)], ['both counts are within 4.1 %']),
        (
            [row('a', params=EQUAL), row('b', flops=NEAR)],
            ['1 of 2 counts are equal, the other is within 0.2 %'],
        ),
        (
            [row('a', params=EQUAL, flops=FAR), row('b', params=NEAR)],
            ['1 of 3 counts are equal, the others are within 4.1 %'],
        ),
        ([row(name, params=EQUAL) for name in 'abc'], ['all 3 counts are equal']),
        ([row('a', 'P, Table 2', params=EQUAL)], []),
        ([dict(row('a', params=EQUAL), reading_of='b')], []),
    ],
)
def test_phrases_count_each_figure_once(rows, phrases):
    assert agreement(['P, Table 1'], rows) == phrases


def test_reasons_name_how_many_rows_they_are_for():
    rows = [dict(row(name), omitted='because') for name in 'ab']
    rows += [dict(row('c'), omitted='no'), dict(row('d', 'P, Table 2'), omitted='no')]
    found = ['2 rows left out (because)', '1 row left out (no)']
    assert reasons(['P, Table 1'], rows) == found
