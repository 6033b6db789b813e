"""The documentation site: it builds without a warning, and its tables are current."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / 'docs'
TUTORIALS = sorted((DOCS / 'tutorials').glob('*.md'))

pytest.importorskip('sphinx')

from docs._ext import checkout_links, plain_docstrings  # noqa: E402


@pytest.fixture
def checkout(tmp_path):
    """A page that includes a README elsewhere, and files to link to."""
    files = (
        'docs/conf.py',
        'docs/page.md',
        'docs/op.md',
        'ops/README.md',
        'ops/code.py',
    )
    for name in (*files, 'ops/other.md'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('')
    (tmp_path / 'docs/op.md').write_text('```{include} ../ops/README.md\n```\n')
    return tmp_path


def relink(checkout: Path, text: str, source: str, page: str) -> str:
    pages = checkout_links.including_pages(checkout / 'docs')
    return checkout_links.relink(text, checkout / source, checkout / page, pages)


@pytest.mark.parametrize(
    'link, expected',
    [
        ('[a](../docs/page.md#b)', '[a](page.md#b)'),
        ('[a](README.md)', '[a](op.md)'),
        ('[a](../ops)', '[a](op.md)'),
        ('[a](code.py)', '[a](../ops/code.py)'),
        ('[a](other.md)', '[a](path:../ops/other.md)'),
        ('![a](../docs/i.png)', '![a](i.png)'),
        ('[a](../docs)', 'a'),
        ('[a](https://b.c/d.md)', '[a](https://b.c/d.md)'),
        ('[a](#b)', '[a](#b)'),
        ('```\n[a](code.py)\n```', '```\n[a](code.py)\n```'),
    ],
)
def test_links_of_an_included_readme(checkout, link, expected):
    assert relink(checkout, link, 'ops/README.md', 'docs/op.md') == expected


def test_docstrings_become_restructured_text():
    lines = """Attend with `a * b` and *grid.

    p = a * b

From x.

Args:
    first, second,
        third: a product, a * b.
    name_: `*args` stays.

Example:
    >>> a * b
""".splitlines()
    assert (
        plain_docstrings.prepared(lines)
        == """Attend with `a * b` and \\*grid.

::

    p = a * b

From x.

Args:
    first, second, third: a product, a \\* b.
    name\\_: `*args` stays.

Example:
    >>> a * b
""".splitlines()
    )


def build(target: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q']
    command += ['-d', str(target / 'doctrees'), *options, str(DOCS), str(target)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_site_builds_without_a_warning(tmp_path):
    done = build(tmp_path, '-D', 'nb_execution_mode=off')
    assert done.returncode == 0, done.stderr
    start = (tmp_path / 'start.html').read_text()
    assert 'https://cdn' not in start
    assert (tmp_path / 'searchindex.js').stat().st_size > 100_000
    page = (tmp_path / 'operators/landmark_attention.html').read_text()
    assert '<math' in page and '\\begin' not in page


@pytest.mark.slow
@pytest.mark.parametrize('tutorial', TUTORIALS, ids=lambda path: path.stem)
def test_the_tutorials_run(tutorial, tmp_path, monkeypatch):
    """Run each page as a notebook; an error in a cell is an error here."""
    import nbclient
    from myst_nb.core.read import read_myst_markdown_notebook

    notebook = read_myst_markdown_notebook(tutorial.read_text(), path=tutorial)
    nbclient.NotebookClient(
        notebook, timeout=1200, resources={'metadata': {'path': str(tutorial.parent)}}
    ).execute()
    for cell in notebook.cells:
        for output in cell.get('outputs', ()):
            assert 'Traceback' not in output.get('text', ''), output['text']


@pytest.fixture
def tool():
    pytest.importorskip('mmdet')
    from tools.dev import generate_model_pages

    return generate_model_pages


def test_the_tables_of_metafiles_and_benchmarks_are_up_to_date(tool):
    """The slow test compares the tables of channels and the diagrams too."""
    kinds = ('configs', 'speed', 'recipes')
    stale = [p.name for p in tool.pages() if tool.filled(p, kinds) != p.read_text()]
    assert not stale, 'run python -m tools.dev.generate_model_pages'


@pytest.mark.slow
def test_all_tables_and_diagrams_are_up_to_date(tool):
    stale = [
        path.relative_to(ROOT).as_posix()
        for path, text in tool.outputs().items()
        if not path.is_file() or path.read_text() != text
    ]
    assert not stale, 'run python -m tools.dev.generate_model_pages'


def test_times_are_products(tool):
    """The row of a measured config multiplies its step by the steps of its schedule."""
    table = tool.training(['ivit_t_3x_coco'])
    (row,) = table.splitlines()[2:]
    epochs, batch = 36, 2
    assert f'117,266 x {epochs} / {batch} = 2,110,788' in row
    step = float(row.split('|')[2].removesuffix(' s '))
    days = round(step * 2_110_788 / 86400)
    assert abs(int(row.split(' = ')[2].split()[0]) - days) <= 1
    assert [tool.duration(t) for t in (90, 180, 7200, 10**6)] == [
        '90 seconds',
        '3 minutes',
        '2 hours',
        '12 days',
    ]


def test_a_diagram_has_each_stage(tool):
    svg = tool.diagram('DAT', 'nano')
    for text in ('56 x 56', '7 x 7', '256 channels, stride 32', 'DeformableAttention'):
        assert text in svg
