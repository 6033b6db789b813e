"""Download a large file: resume what an earlier attempt left, and verify the result."""

import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from ..files import file_digest

BLOCK = 1 << 20
# Answers of a server that is busy. Any other error of HTTP is final.
BUSY = (408, 429, 500, 502, 503, 504)
NOTHING_LEFT = 416
# A connection that failed or broke off.
BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)


class DownloadError(UserError):
    """A file that could not be downloaded."""


def download(
    url: str,
    target: Path,
    md5: str,
    *,
    attempts: int = 5,
    wait: float = 2.0,
    timeout: float = 60.0,
) -> Path:
    """Download a file to `target` and return its path.

    A complete file with the right MD5 is kept. Bytes arrive in `TARGET.part`, which the
    next call continues. The file gets its name after its MD5 has been checked.

    Args:
        url: address, http or https.
        target: path of the file; its folder is made.
        md5: expected hex digest of the file.
        attempts: failures in a row, without a new byte, after which to give up.
        wait: seconds before the second attempt, doubled for each further one.
        timeout: seconds without a byte after which a connection counts as broken.

    Raises:
        DownloadError: the server has no such file, the connection failed in all
            attempts, or the MD5 is another.
    """
    if target.is_file():
        if file_digest(target, 'md5') == md5:
            return target
        raise DownloadError(
            f'{target} exists and its MD5 is not {md5}, that of {url}; '
            'remove the file to download it again'
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f'{target.name}.part')
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch(url, part, timeout)
            break
        except BROKEN as error:
            code = getattr(error, 'code', None)
            if code is not None and code not in BUSY:
                raise DownloadError(f'{url}: {error}') from error
            failures = 0 if _size(part) > before else failures + 1
            if failures >= attempts:
                raise DownloadError(
                    f'{url}: {error} ({attempts} attempts). {part} keeps '
                    f'{_size(part)} bytes; run the command again to continue'
                ) from error
            time.sleep(wait * 2 ** max(failures - 1, 0))
    found = file_digest(part, 'md5')
    if found != md5:
        part.unlink()
        raise DownloadError(
            f'{url}: the MD5 of the file is {found}, expected {md5}; it was discarded'
        )
    os.replace(part, target)
    return target


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _fetch(url: str, part: Path, timeout: float) -> None:
    """Append to `part` what it lacks of the file at `url`.

    Raises:
        OSError: the connection failed, or ended before the file did.
    """
    start = _size(part)
    headers = {'User-Agent': 'mmattn'}
    if start:
        headers['Range'] = f'bytes={start}-'
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == NOTHING_LEFT:
            return  # the MD5 tells whether `part` is the file
        raise
    with response:
        if response.status != 206:
            start = 0  # the server sends the whole file
        length = response.headers.get('Content-Length')
        total = None if length is None else start + int(length)
        with (
            open(part, 'ab' if start else 'wb') as file,
            tqdm(
                total=total,
                initial=start,
                unit='B',
                unit_scale=True,
                desc=part.stem,
                disable=None,
            ) as bar,
        ):
            while block := response.read(BLOCK):
                file.write(block)
                bar.update(len(block))
    if total is not None and _size(part) < total:
        raise ConnectionError(f'the connection ended at {_size(part)} of {total} bytes')
