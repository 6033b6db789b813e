"""Examples of the pages run; versions match the code."""

import re
from inspect import signature
from pathlib import Path
from unittest.mock import create_autospec

import pytest

import mmattn

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r'^```python\n(.*?)^```$', re.MULTILINE | re.DOTALL)
README = (ROOT / 'README.md').read_text()


def test_versions_agree():
    changes = (ROOT / 'CHANGELOG.md').read_text()
    version, date = re.search(r'^## \[([\d.]+)\] - (\S+)$', changes, re.M).groups()
    assert version == mmattn.__version__
    citation = (ROOT / 'CITATION.cff').read_text()
    assert f'\nversion: {version}\ndate-released: {date}\n' in citation
    assert f'\nVersion {version} ' in README


@pytest.mark.parametrize('page', ['README.md', 'docs/start.md', 'docs/finetune.md'])
def test_the_first_example_trains(page, monkeypatch):
    """The calls are those that exist, with their arguments."""
    from mmattn.apis import finetune as module

    given = []
    takes = signature(module.finetune)
    run = create_autospec(module.Run, instance=True)

    def finetune(*args, **options):
        given.append(takes.bind(*args, **options))
        return run

    monkeypatch.setattr(module, 'finetune', finetune)
    blocks = BLOCK.findall((ROOT / page).read_text())
    exec(next(block for block in blocks if 'finetune' in block), {})
    assert given[0].arguments['minutes'] == 20
    run.report.assert_called_once()
    run.predictor.assert_called_once_with('image.jpg')


def test_readme_example_in_plain_pytorch(capsys):
    exec(BLOCK.findall(README)[2], {})
    assert capsys.readouterr().out == '(64, 128, 320, 512) (4, 8, 16, 32)\n'


def test_readme_config_builds(tmp_path):
    from mmengine.config import Config

    from mmattn.analysis.flops import build

    path = tmp_path / 'user.py'
    path.write_text(BLOCK.findall(README)[1])
    model = build(Config.fromfile(path))
    assert type(model.backbone).__name__ == 'PVTv2'


def test_examples_in_other_libraries(capsys):
    blocks = BLOCK.findall((ROOT / 'docs/other_libraries.md').read_text())
    for block in blocks:
        exec(block, {})
    assert blocks and '[64, 256] [8, 32]' in capsys.readouterr().out


def test_each_folder_of_configs_has_a_page():
    pages = (ROOT / 'docs/configs/index.md').read_text().splitlines()
    for readme in ROOT.glob('configs/*/README.md'):
        name = readme.parent.name
        assert name in pages, name
        page = (ROOT / f'docs/configs/{name}.md').read_text()
        assert f'configs/{name}/README.md' in page


def test_commands_name_files_that_exist():
    pattern = re.compile(r'python (?:-m pytest )?((?:tools|projects|tests)/\S+\.py)')
    modules = re.compile(r'python -m ((?:tools|projects)\.[\w.]+\w)')
    pages = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *ROOT.glob('docs/**/*.md')]
    for page in pages:
        text = page.read_text()
        names = pattern.findall(text)
        names += [x.replace('.', '/') + '.py' for x in modules.findall(text)]
        missing = [name for name in names if not (ROOT / name).is_file()]
        assert not missing, page
