"""Installs copies of this checkout into environments of their own, for tests."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


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


def make_environment(folder: Path) -> tuple[Path, Path]:
    """Make a virtual environment that has the packages of this one, but not mmattn.

    Returns:
        Its interpreter and its site-packages.
    """
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob('lib/python*/site-packages')
    # Their own .pth files are not run: an editable install of mmattn stays out.
    (packages / 'others.pth').write_text(sysconfig.get_path('purelib') + '\n')
    return folder / 'bin' / 'python', packages


def hook_in(packages: Path):
    """Gives an environment this checkout, and the hook that an installation has."""
    (packages / 'mmattn.pth').write_text(f'{ROOT}\nimport mmattn_startup\n')


def pip(python: Path, *arguments) -> str:
    """Runs this environment's pip for another interpreter."""
    done = subprocess.run(
        [sys.executable, '-m', 'pip', '--python', python, *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python: Path, *what):
    pip(python, 'install', '--no-deps', '--no-index', '--no-build-isolation', *what)
