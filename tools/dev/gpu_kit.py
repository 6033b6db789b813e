"""Pack the checkout and the wheels that a machine without a network lacks.

    python -m tools.dev.gpu_kit --out gpu_kit
    scp -r gpu_kit machine: && ssh machine sh gpu_kit/run.sh

The folder holds the committed files, wheels and `run.sh`, which unpacks those wheels
that the machine lacks and runs `tools.benchmark.gpu_report` with its arguments. The
machine needs torch with CUDA, Triton and timm. Pure wheels are packed from what is
installed here. Compiled ones are downloaded for `--python` and left out without a
network. Part `detector` also needs OpenCV and SciPy, which are too large for a kit.
"""

import argparse
import platform
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60 * 2**20  # bytes of the whole folder
PLATFORMS = ('manylinux2014', 'manylinux_2_17', 'manylinux_2_27', 'manylinux_2_28')
# The most useful ones first: those that do not fit are left out.
PURE = (
    'rich',
    'markdown-it-py',
    'mdurl',
    'Pygments',
    'addict',
    'termcolor',
    'yapf',
    'platformdirs',
    'onedl-mmengine',
    'onedl-mmcv',
    'onedl-mmdetection',
    'terminaltables',
    'six',
    'tqdm',
    'packaging',
    'cycler',
    'pyparsing',
    'python-dateutil',
)
COMPILED = (
    'pycocotools',
    'shapely',
    'contourpy',
    'kiwisolver',
    'fonttools',
    'pillow',
    'matplotlib',
)
RUN = """#!/bin/sh
# Run the GPU report: sh run.sh [options of tools.benchmark.gpu_report]
set -e
kit=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
export PYTHONSAFEPATH=1  # not the checkout that this may be run from
export PYTHONPATH="$kit/mmattn:$kit/site${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m tools.dev.gpu_kit --unpack "$kit"
exec "$python" -m tools.benchmark.gpu_report --out "$kit/report" "$@"
"""


def pack_checkout(folder: Path):
    """Unpack the files of the last commit into a folder."""
    command = ['git', '-C', str(ROOT), 'archive', 'HEAD']
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter='data')


def repack(name: str, folder: Path) -> Path | None:
    """Write the wheel of a pure distribution that is installed, or return None."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    tags = [
        line.partition(': ')[2]
        for line in (found.read_text('WHEEL') or '').splitlines()
        if line.startswith('Tag: ')
    ]
    is_pure = tags and all(tag.endswith('-none-any') for tag in tags)
    if not is_pure or found.files is None:
        return None
    stem = f'{name.replace("-", "_")}-{found.version}'
    path = folder / f'{stem}-py3-none-any.whl'
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for file in found.files:
            # Scripts are outside of the packages' folder.
            if '..' in file.parts or '__pycache__' in file.parts:
                continue
            if file.locate().is_file():
                archive.write(file.locate(), file)
    return path


def download(name: str, folder: Path, python: str) -> str | None:
    """Download a wheel for a version of Python, and return why not."""
    machine = platform.machine()
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
    command += ['--only-binary=:all:', '--python-version', python]
    for system in PLATFORMS:
        command += ['--platform', f'{system}_{machine}']
    done = subprocess.run(
        [*command, '--dest', str(folder), name], capture_output=True, text=True
    )
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (lines or ['pip failed'])[-1]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())


def fill(folder: Path, pythons: list[str], limit: int) -> Iterator[str]:
    """Write the wheels that fit, and yield what is left out."""
    wheels = folder / 'wheels'
    wheels.mkdir()
    wanted = [(name, None) for name in PURE]
    wanted += [(name, python) for name in COMPILED for python in pythons]
    for name, python in wanted:
        before = set(wheels.iterdir())
        reason = None
        if python is not None or repack(name, wheels) is None:
            reason = download(name, wheels, python or pythons[0])
        if reason is not None:
            yield f'{name}: {reason}'
        elif size_of(folder) > limit:
            for path in set(wheels.iterdir()) - before:
                path.unlink()
            yield f'{name}: it would make the kit larger than {limit / 2**20:.0f} MiB'


def runs_here(wheel: Path) -> bool:
    """Return whether a wheel is made for this Python."""
    python, abi, _ = wheel.stem.split('-')[-3:]
    if 'py3' in python.split('.'):
        return True
    # cp312 is made for Python 3.12, and with the stable ABI also for newer ones.
    version = int(python[2]), int(python[3:])
    own = sys.version_info[:2]
    return own == version or (abi == 'abi3' and own > version)


def unpack(kit: Path):
    """Unpack the wheels of distributions that this Python lacks into `site`.

    A wheel is a zip file, so this needs no pip.
    """
    site = kit / 'site'
    for wheel in sorted((kit / 'wheels').glob('*.whl')):
        name = wheel.name.partition('-')[0].replace('_', '-')
        if runs_here(wheel) and not is_installed(name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


def is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--out', type=Path, default=Path('gpu_kit'), metavar='FOLDER')
    parser.add_argument(
        '--python',
        nargs='+',
        default=['3.12'],
        metavar='VERSION',
        help='versions of Python of the machine (default: 3.12)',
    )
    parser.add_argument('--unpack', type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.unpack is None and args.out.exists():
        parser.error(f'--out: {args.out} exists')
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    if args.unpack is not None:
        unpack(args.unpack)
        return 0
    args.out.mkdir(parents=True)
    pack_checkout(args.out / 'mmattn')
    run = args.out / 'run.sh'
    run.write_text(RUN)
    run.chmod(run.stat().st_mode | stat.S_IXUSR)
    for left_out in fill(args.out, args.python, LIMIT):
        print(f'left out: {left_out}')
    print(f'{args.out}: {size_of(args.out) / 2**20:.1f} MiB; run {run}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
