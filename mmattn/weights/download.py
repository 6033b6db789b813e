"""Download files: each gets its name once its length, digest and content are right."""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from ..files import file_digest

BLOCK = 1 << 20
SLOWEST = 1000  # bytes a second, below which a server holds up a program
# Answers of a server that is busy. Any other error of HTTP is final.
BUSY = (408, 429, 500, 502, 503, 504)
GONE = (404, 410)
NOTHING_LEFT = 416
# A connection that failed or broke off.
BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)
PAGES = b'<!doctype html', b'<html'


class DownloadError(UserError):
    """A file that could not be downloaded, or is not the one that was asked for."""


class UnreachableError(DownloadError, ConnectionError):
    """A server that is out of reach, or breaks off."""


class MissingFileError(DownloadError, FileNotFoundError):
    """A server without the file."""


def download(
    url: str,
    target: Path,
    digest: str = '',
    *,
    fault: Callable[[Path], str] = lambda path: '',
    limit: int | None = None,
    resume: bool = False,
    progress: bool | None = None,
    attempts: int = 5,
    wait: float = 2.0,
    timeout: float = 60.0,
) -> Path:
    """Download a file to `target` and return its path.

    A file that is there and right is kept. Bytes arrive beside it, and a broken
    connection continues. The file gets its name after all checks; a wrong one is
    removed.

    Args:
        url: address, http or https.
        target: path of the file; its folder is made.
        digest: an MD5 of 32 hex digits, or the first digits of a SHA-256.
        fault: returns what is wrong with a file's content, or ''.
        limit: bytes of the largest file that is accepted.
        resume: keep what a failed call has received in `TARGET.part`, for the next
            call. It requires a digest, and that no two calls run at a time.
        progress: show a bar; None shows it in a terminal.
        attempts: failures in a row, without a new byte, after which to give up.
        wait: seconds before the second attempt, doubled for each further one.
        timeout: seconds without a byte after which a connection counts as broken.

    Raises:
        MissingFileError: the server has no such file.
        UnreachableError: the connection failed in all attempts.
        DownloadError: the file is wrong, too large or too slow, or the address is none.
    """
    if target.is_file():
        if found := _problem(target, digest, fault):
            raise DownloadError(
                f'{target} {found}; remove the file to download {url} again'
            )
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f'{target.name}.{"" if resume else f"{os.getpid()}."}part')
    try:
        _receive(url, part, digest, limit, progress, attempts, wait, timeout)
        if found := _problem(part, digest, fault):
            part.unlink()
            raise DownloadError(f'{url} {found}; it was discarded')
        os.replace(part, target)
    except UnreachableError as error:
        kept = f' {part} keeps {_size(part)} bytes; run the command again to continue'
        raise type(error)(f'{error}{kept if resume else ""}') from error
    finally:
        if not resume:
            part.unlink(missing_ok=True)
    return target


def _problem(path: Path, digest: str, fault: Callable[[Path], str]) -> str:
    """Return what is wrong with a complete file, or ''."""
    with path.open('rb') as file:
        start = file.read(100).lstrip().lower()
    if not start:
        return 'is empty'
    if start.startswith(PAGES):
        return 'is a web page rather than a file'
    kind, name = ('md5', 'MD5') if len(digest) == 32 else ('sha256', 'SHA-256')
    if digest and not (found := file_digest(path, kind)).startswith(digest):
        return f'has the {name} {found}, expected {digest}'
    return fault(path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(url, part, digest, limit, progress, attempts, wait, timeout) -> None:
    """Fetch what `part` lacks, again where a connection breaks off."""
    failures, tags = 0, []
    while True:
        before = _size(part)
        try:
            _fetch(url, part, digest, tags, limit, progress, timeout)
            return
        except BROKEN as error:
            code = getattr(error, 'code', None)
            reason = f'{url} cannot be downloaded: {_line(error)}'
            if code in GONE:
                raise MissingFileError(reason) from error
            if code is not None and code not in BUSY:
                raise DownloadError(reason) from error
            failures = 0 if _size(part) > before else failures + 1
            if failures >= attempts:
                raise UnreachableError(f'{reason} ({attempts} attempts).') from error
            time.sleep(wait * 2 ** max(failures - 1, 0))
        except ValueError as error:  # of urllib, about the address
            if isinstance(error, UserError):
                raise
            raise DownloadError(f'{url} is no address: {_line(error)}') from error


def _line(error: Exception) -> str:
    """Return an error in one line; a server writes parts of it."""
    return ' '.join(f'{type(error).__name__} {error}'.split())[:300]


def _fetch(url, part: Path, digest: str, tags: list[str], limit, progress, timeout):
    """Append to `part` what it lacks of the file at `url`.

    Args:
        tags: version of the file that `part` begins, which the first answer adds.

    Raises:
        OSError: the connection failed, or ended before the file did.
        DownloadError: the file is too large, or arrives too slowly.
    """
    start = _size(part) if digest or tags else 0
    headers = {'User-Agent': 'mmattn'}
    if start:
        headers['Range'] = f'bytes={start}-'
        if tags:  # the whole file follows if it has another version
            headers['If-Range'] = tags[0]
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == NOTHING_LEFT:
            return  # the digest tells whether `part` is the file
        raise
    with response:
        if response.status != 206:
            start = 0  # the server sends the whole file
            tag = response.headers.get('ETag', '')
            tags[:] = [tag] if tag.startswith('"') else []
        length = response.headers.get('Content-Length', '')
        total = start + int(length) if length.isdecimal() else None
        began = time.monotonic()
        with (
            open(part, 'ab' if start else 'wb') as file,
            tqdm(
                total=total,
                initial=start,
                unit='B',
                unit_scale=True,
                desc=part.stem,
                disable=None if progress is None else not progress,
            ) as bar,
        ):
            while block := response.read1(BLOCK):
                file.write(block)
                bar.update(len(block))
                seconds = time.monotonic() - began
                if limit is not None and file.tell() > limit:
                    raise DownloadError(f'{url} is larger than {limit >> 20} MiB')
                if seconds > timeout and file.tell() - start < SLOWEST * seconds:
                    raise DownloadError(
                        f'{url} sends fewer than {SLOWEST} bytes a second'
                    )
    if total is not None and _size(part) < total:
        raise ConnectionError(f'the connection ended at {_size(part)} of {total} bytes')
