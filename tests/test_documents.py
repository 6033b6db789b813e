"""Examples of the pages run; versions match the code."""

import re
from pathlib import Path

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


def test_readme_example_in_plain_pytorch(capsys):
    exec(BLOCK.findall(README)[1], {})
    assert capsys.readouterr().out == '(64, 128, 320, 512) (4, 8, 16, 32)\n'


def test_readme_config_builds(tmp_path):
    from mmengine.config import Config

    from mmattn.analysis.flops import build

    path = tmp_path / 'user.py'
    path.write_text(BLOCK.findall(README)[0])
    model = build(Config.fromfile(path))
    assert type(model.backbone).__name__ == 'IViT'


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
