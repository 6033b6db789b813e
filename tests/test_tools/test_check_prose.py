import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / 'tools' / 'dev' / 'check_prose.py'


def run(file: Path, docstring: str) -> subprocess.CompletedProcess:
    file.write_text(f'def of_a_config():\n    """{docstring}"""\n')
    return subprocess.run(
        [sys.executable, TOOL, file], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    'docstring', ['Of a config: its name.', 'What a run needs.', 'Whether it runs.']
)
def test_a_headless_docstring_fails(tmp_path, docstring):
    done = run(tmp_path / 'a.py', docstring)
    assert done.returncode == 1
    assert f'a.py:2: begin the docstring with a verb: {docstring}' in done.stdout


def test_a_docstring_that_begins_with_its_verb_passes(tmp_path):
    done = run(tmp_path / 'a.py', 'Return what a config is called, or whose it is.')
    assert done.returncode == 0, done.stdout
