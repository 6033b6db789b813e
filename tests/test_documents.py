"""README, CONTRIBUTING and the pages of docs/ are short, linked and runnable."""

import re
from pathlib import Path

import pytest

import mmattn

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob('*.md'),
    *ROOT.glob('docs/**/*.md'),
    *ROOT.glob('projects/**/*.md'),
    *ROOT.glob('mmattn/ops/**/README.md'),
]
LINK = re.compile(r'\]\(([^)\s]+)\)')
HEADING = re.compile(r'^#+ (.+)$', re.MULTILINE)
BLOCK = re.compile(r'^```python\n(.*?)^```$', re.MULTILINE | re.DOTALL)
README = (ROOT / 'README.md').read_text()


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings have on GitHub."""
    headings = HEADING.findall(page.read_text())
    kept = (re.sub(r'[^\w\- ]', '', heading.lower()) for heading in headings)
    return {heading.replace(' ', '-') for heading in kept}


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files or headings that do not exist."""
    broken = []
    for link in LINK.findall(page.read_text()):
        if link.startswith(('http://', 'https://')):
            continue
        path, _, anchor = link.partition('#')
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_lead_somewhere():
    broken = {str(page): links for page in PAGES if (links := broken_links(page))}
    assert not broken


def test_paths_of_contributing_exist():
    text = (ROOT / 'CONTRIBUTING.md').read_text()
    paths = re.findall(
        r'\b((?:configs|docs|mmattn|projects|tests|tools)(?:/[\w.]+)+/?)', text
    )
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_pre_commit_runs_the_tools_of_the_tests():
    hooks = (ROOT / '.pre-commit-config.yaml').read_text()
    tools = re.findall(r"additional_dependencies: \['?(.+?)'?\]", hooks)
    assert len(tools) == 4
    assert set(tools) < set((ROOT / 'requirements' / 'tests.txt').read_text().split())


def test_versions_agree():
    changes = (ROOT / 'CHANGELOG.md').read_text()
    version, date = re.search(r'^## \[([\d.]+)\] - (\S+)$', changes, re.M).groups()
    assert version == mmattn.__version__
    citation = (ROOT / 'CITATION.cff').read_text()
    assert f'\nversion: {version}\ndate-released: {date}\n' in citation


def test_pictures_are_small():
    from tools.dev.shrink_pictures import large_pictures

    assert not large_pictures(), 'run python -m tools.dev.shrink_pictures'


def test_readme_has_at_most_900_words():
    assert len(README.split()) <= 900


def test_readme_examples_are_short():
    assert [len(block.splitlines()) for block in BLOCK.findall(README)] == [7, 6]


def test_readme_example_in_plain_pytorch(capsys):
    exec(BLOCK.findall(README)[1], {})
    assert capsys.readouterr().out == '(64, 128, 320, 512) (4, 8, 16, 32)\n'


def test_examples_in_other_libraries(capsys):
    for name in ('timm', 'torchvision', 'transformers'):
        pytest.importorskip(name)
    blocks = BLOCK.findall((ROOT / 'docs/other_libraries.md').read_text())
    for block in blocks:
        exec(block, {})
    assert len(blocks) == 5 and '[64, 256] [8, 32]' in capsys.readouterr().out


def test_readme_config_builds(tmp_path):
    pytest.importorskip('mmdet')
    from mmengine.config import Config

    from mmattn.analysis.flops import build

    path = tmp_path / 'user.py'
    path.write_text(BLOCK.findall(README)[0])
    model = build(Config.fromfile(path))
    assert type(model.backbone).__name__ == 'IViT'


def test_readme_quotes_the_lower_speed():
    quoted = re.search(r'IViT-T has ([\d.]+) times.*?([\d.]+) times', README, re.S)
    table = (ROOT / 'docs/benchmarks/README.md').read_text()
    row = re.search(r'^\| `ivit_t` \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \|$', table, re.M)
    assert quoted.groups() == row.groups()
