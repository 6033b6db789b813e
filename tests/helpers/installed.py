"""Builds of this checkout, for tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_checkout(source: Path) -> Path:
    """Copies what git tracks or would add."""
    listed = subprocess.run(
        ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '-z'],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split('\0')):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    return source


def build(kind: str, out_dir: Path) -> Path:
    """Builds a wheel or an sdist from a clean copy."""
    source = copy_checkout(out_dir / 'source')
    subprocess.run(
        [sys.executable, '-m', 'build', f'--{kind}', '--no-isolation']
        + ['--outdir', str(out_dir), str(source)],
        check=True,
        capture_output=True,
    )
    (built,) = out_dir.glob('mmattn-*')
    return built
