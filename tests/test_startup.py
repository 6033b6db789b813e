"""The start-up hook: what it does without `import mmattn`, and what it leaves alone.

Each test runs a plain interpreter that imports `mmattn_startup` first, as the `.pth`
file of an installation does, beside packages that stand in for mmcv and mmengine.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_SECONDS = 1e-3
NO_OPERATORS = {'mmcv/__init__.py': '', 'mmcv/utils.py': ''}
MMENGINE = {
    'mmengine/__init__.py': '',
    'mmengine/runner/__init__.py': '',
    'mmengine/runner/checkpoint.py': 'untouched = True',
    'mmengine/config/__init__.py': '',
    'mmengine/config/utils.py': 'MODULE2PACKAGE = {}',
}


@pytest.fixture
def plain(tmp_path):
    """Runs code in an interpreter without site-packages; returns the words it prints.

    Files are written beside those of mmattn, the whole checkout unless `ours` says.
    """

    def run(code: str, files: dict, ours: Path = ROOT) -> list[str]:
        for name, text in files.items():
            path = tmp_path / 'stand_ins' / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run(
            [sys.executable, '-S', '-c', f'import sys, mmattn_startup\n{code}'],
            env={
                **os.environ,
                'PYTHONPATH': os.pathsep.join([str(ours), str(tmp_path / 'stand_ins')]),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def test_the_start_is_light(plain):
    enter = 'import sys; before = set(sys.modules)'
    code = f'{enter}; import mmattn_startup; print(*set(sys.modules) - before)'
    done = subprocess.run(
        [sys.executable, '-S', '-c', code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == ['mmattn_startup']
    names = "print(*(name for name in sys.modules if 'mmattn' in name))"
    assert plain(f'import json; {names}', {}) == ['mmattn_startup']


def test_the_start_is_fast(plain):
    code = (
        'import time\n'
        'times = []\n'
        'for _ in range(20):\n'
        "    del sys.modules['mmattn_startup']\n"
        '    start = time.perf_counter()\n'
        '    import mmattn_startup\n'
        '    times.append(time.perf_counter() - start)\n'
        'print(min(times))\n'
    )
    assert float(*plain(code, {})) < MAX_SECONDS


def test_what_fails_without_is_repaired_and_nothing_else(plain):
    code = (
        'import importlib.util, mmengine.config.utils, mmengine.runner.checkpoint\n'
        "print(importlib.util.find_spec('mmcv._ext').origin)\n"
        'print(*mmengine.config.utils.MODULE2PACKAGE)\n'
        "print('mmattn' in sys.modules)\n"
    )
    said = plain(code, NO_OPERATORS | MMENGINE)
    assert said == ['mmattn.compat.mmcv_ops', 'mmattn', 'False']


def test_importing_mmattn_later_does_the_rest(plain):
    """The stand-in has no `CheckpointLoader` to correct, which is how one sees it."""
    code = (
        'import mmengine.config.utils\n'
        "assert 'mmattn.compat.finder' in sys.modules\n"
        "assert 'mmattn' not in sys.modules\n"
        'count = len(sys.meta_path)\n'
        'import mmattn.compat.mmengine_scopes\n'
        'print(mmattn.compat.mmengine_scopes.SCOPE, mmattn.compat.finder.__name__)\n'
        'print(len(sys.meta_path) - count)\n'
        'try:\n'
        '    import mmengine.runner.checkpoint\n'
        'except AttributeError as error:\n'
        '    print(error.name)\n'
    )
    said = plain(code, NO_OPERATORS | MMENGINE)
    assert said == ['mmattn', 'mmattn.compat.finder', '0', 'CheckpointLoader']


def test_importing_mmattn_first_is_not_undone(plain):
    code = (
        'import mmattn\n'
        'try:\n'
        '    import mmengine.runner.checkpoint\n'
        'except AttributeError as error:\n'
        '    print(error.name)\n'
    )
    assert plain(code, MMENGINE) == ['CheckpointLoader']


def test_a_finder_behind_the_hook_is_asked_still(plain):
    """It is the next one, and the hook adds another before both."""
    code = (
        'from importlib.machinery import ModuleSpec\n'
        'class Finder:\n'
        '    def find_spec(self, name, path=None, target=None):\n'
        "        return ModuleSpec(name, self) if name == 'mmcv' else None\n"
        '    create_module = staticmethod(lambda spec: None)\n'
        "    exec_module = staticmethod(lambda module: print('found'))\n"
        'sys.meta_path.insert(1, Finder())\n'
        'import mmcv\n'
    )
    assert plain(code, {}) == ['found']


def test_a_compiled_mmcv_wins(plain):
    compiled = NO_OPERATORS | {'mmcv/_ext.py': "nms = 'compiled'"}
    assert plain('import mmcv._ext; print(mmcv._ext.nms)', compiled) == ['compiled']


@pytest.mark.parametrize('left', [[], ['__init__.py'], ['compat/finder.py']])
def test_what_is_left_of_an_mmattn_breaks_nothing(plain, tmp_path, left):
    ours = tmp_path / 'ours'
    for name in ['../mmattn_startup.py', *left]:
        target = ours / 'mmattn' / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / 'mmattn' / name, target)
    code = (
        'import mmengine.config.utils, mmcv.utils\n'
        'print(*mmengine.config.utils.MODULE2PACKAGE)\n'
        'try:\n'
        '    import mmcv._ext\n'
        'except ModuleNotFoundError as error:\n'
        '    print(error.name)\n'
    )
    assert plain(code, NO_OPERATORS | MMENGINE, ours) == ['mmcv._ext']


@pytest.mark.slow
def test_a_test_file_that_begins_with_mmpretrain_is_collected_alone():
    """Also where nothing is installed but what `PYTHONPATH` has."""
    pytest.importorskip('mmpretrain')
    file = 'tests/test_models/test_distillation.py'
    subprocess.run(
        [sys.executable, '-m', 'pytest', '--collect-only', '-q', file],
        env=os.environ | {'PYTHONPATH': str(ROOT)},
        cwd=ROOT,
        check=True,
    )
