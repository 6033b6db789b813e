"""The page of public names lists what the code has, and nothing else."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import mmattn
from mmattn import registry
from mmattn.cli.main import COMMANDS
from mmattn.models import backbones

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / 'docs/api/public.md').read_text()
INTEGRATIONS = {
    f'mmattn.integrations.{path.stem}'
    for path in (ROOT / 'mmattn/integrations').glob('*.py')
    if re.search('^__all__', path.read_text(), re.MULTILINE)
}
# timm adds the names of its models to the `__all__` of the module that registers them.
BY_PREFIX = {'mmattn.integrations.timm': {'mmattn_NAME'}}


def rows(title: str) -> dict[str, set[str]]:
    """Return the names in the second column of a table, by the name in the first."""
    section = PAGE.partition(f'\n## {title}\n')[2].partition('\n## ')[0]
    table = re.findall(r'^\| `(.+?)` \| (.+) \|$', section, re.MULTILINE)
    return {name: set(re.findall('`(.+?)`', cell)) for name, cell in table}


MODULES = rows('Python')


def test_modules_with_public_names():
    packages = (
        'mmattn',
        *(f'mmattn.{n}' for n in 'ops models apis results export'.split()),
    )
    assert set(MODULES) == {*packages, *INTEGRATIONS}


@pytest.mark.parametrize('name', MODULES)
def test_names_of_a_module(name):
    module = import_module(name)
    expected = set(module.__all__) - set(backbones.__all__)
    if name == 'mmattn':
        assert all(hasattr(mmattn, backbone) for backbone in backbones.__all__)
    if name == 'mmattn.models':
        assert set(backbones.__all__) < set(module.__all__)
    assert MODULES[name] == BY_PREFIX.get(name, expected)
    assert all(hasattr(module, public) for public in module.__all__)


def test_the_page_of_models_lists_the_backbones():
    page = (ROOT / 'docs/models/index.md').read_text()
    listed = set(re.findall(r"^\| `(\w+)` \| `'", page, re.MULTILINE))
    assert listed == set(backbones.__all__)


def test_types_in_configs():
    for name in registry.ON_DEMAND.values():
        import_module(name)
    for name in registry.__all__:
        getattr(registry, name).import_from_location()
    known = {
        name: {
            key
            for key, value in getattr(registry, name).module_dict.items()
            if value.__module__.startswith('mmattn.')  # other tests register theirs
        }
        for name in registry.__all__
    }
    assert set(backbones.__all__) < known['MODELS']
    known['MODELS'] -= set(backbones.__all__)
    assert rows('Types in configs') == known


def test_command_lines():
    scripts = {
        path.name for end in ('py', 'sh') for path in ROOT.glob(f'tools/*.{end}')
    }
    scripts -= {'__init__.py', 'launch.sh'}
    assert rows('Command lines') == {'mmattn': set(COMMANDS), 'tools/': scripts}


def test_environment_variables():
    files = [ROOT / 'setup.py', ROOT / 'Makefile', *ROOT.glob('mmattn/**/*.py')]
    used = {
        v for file in files for v in re.findall(r'MMATTN_[A-Z_]+', file.read_text())
    }
    assert set(rows('Environment variables')) == used
