"""Check what `make lint` reads."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def listed(*command: str) -> list[str]:
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_ruff_reads_every_python_file():
    pytest.importorskip('ruff')
    if not (ROOT / '.git').exists():
        pytest.skip('a copy without git')
    read = {
        Path(file).relative_to(ROOT).as_posix()
        for file in listed(sys.executable, '-m', 'ruff', 'check', '--show-files')
    }
    assert set(listed('git', 'ls-files', '*.py')) <= read
