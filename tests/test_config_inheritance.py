"""Configs inherit few files and set only what these do not."""

import ast
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

from config_files import BASES, LEAVES, config_id, model_zoo

MAX_LEAF_LINES = 40


def bases(path: Path) -> list[Path]:
    """Return the files that a config inherits."""
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == '_base_':
            named = ast.literal_eval(statement.value)
            names = [named] if isinstance(named, str) else named
            return [(path.parent / name).resolve() for name in names]
    return []


def own_settings(path: Path) -> tuple[dict, dict]:
    """Return what a config sets itself and what it inherits."""
    inherited = {}
    for base in bases(path):
        inherited |= model_zoo.load(base)._cfg_dict
    tree = ast.parse(path.read_text())
    tree.body = [
        statement
        for statement in tree.body
        if not ast.unparse(statement).startswith('_base_ = ')
    ]
    values = {'_base_': Inherited(copy.deepcopy(inherited))}
    exec(compile(tree, path, 'exec'), values)
    own = {key: value for key, value in values.items() if not key.startswith('_')}
    return own, inherited


class Inherited(dict):
    """Stand in for mmengine's `_base_`, which has the settings as attributes."""

    __getattr__ = dict.__getitem__


def repeated(own: Mapping, inherited: Mapping, path: str = '') -> Iterator[str]:
    """Yield the settings that have their inherited value."""
    if own.get('_delete_'):
        return
    for key, value in own.items():
        if key not in inherited:
            continue
        if isinstance(value, Mapping) and isinstance(inherited[key], Mapping):
            yield from repeated(value, inherited[key], f'{path}{key}.')
        elif value == inherited[key] and type(value) is type(inherited[key]):
            yield f'{path}{key}'


def test_no_config_sets_what_it_inherits():
    found = [
        f'{config_id(path)}: {setting}'
        for path in LEAVES + BASES
        for setting in repeated(*own_settings(path))
    ]
    assert not found, '\n'.join(found)


def test_leaves_are_short_and_inherit_bases_or_one_leaf_that_does():
    for path in LEAVES:
        assert len(path.read_text().splitlines()) <= MAX_LEAF_LINES, path
        assert '::' not in path.read_text(), path
        assert all(base.is_file() for base in bases(path)), path
        leaves = [base for base in bases(path) if base not in BASES]
        if not leaves:
            continue
        assert len(bases(path)) == 1, path
        if path.parent.name == 'strategies':  # other machinery for any leaf
            continue
        assert leaves[0].parent == path.parent, path
        assert set(bases(leaves[0])) <= set(BASES), path


def test_bases_have_no_backbone_and_inherit_at_most_two_files_of_their_folder():
    for path in BASES:
        assert 'backbone' not in model_zoo.load(path).get('model', {}), path
        chain = [path]
        while inherited := bases(chain[-1]):
            assert len(inherited) == 1, path
            chain += inherited
        assert len(chain) <= 3, path
        assert {base.parent for base in chain} == {path.parent}, path
