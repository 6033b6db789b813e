"""How files are written: what a kill leaves behind, and which storage is meant."""

import errno
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip('mmengine')
from mmengine.fileio import LocalBackend
from mmengine.fileio.backends import backends

from mmattn.engine.checkpoints.atomic_files import (
    atomic_backend_args,
    remove_unfinished,
    write_atomically,
)


def test_what_a_kill_leaves_is_found_again(tmp_path, monkeypatch):
    """The name of an unfinished file is one that `remove_unfinished` looks for."""
    names = []
    replace = os.replace

    def noted_replace(source, target):
        names.append(Path(source).name)
        replace(source, target)

    monkeypatch.setattr(os, 'replace', noted_replace)
    write_atomically(tmp_path / 'iter_1.pth', b'whole')
    (name,) = names
    (tmp_path / name).write_bytes(b'half')  # as if killed before the rename
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ['iter_1.pth']


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / 'iter_1.pth'
    write_atomically(path, b'old')

    def full_disk(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full_disk)
    with pytest.raises(OSError, match='previous content is untouched') as caught:
        write_atomically(path, b'new')
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    assert path.read_bytes() == b'old' and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize('code', [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_only_a_folder_that_cannot_be_synced_is_excused(tmp_path, monkeypatch, code):
    fsync = os.fsync

    def failing_fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, 'fsync', failing_fsync)
    path = tmp_path / 'file'
    if code == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(code)):
            write_atomically(path, b'content')
    else:
        write_atomically(path, b'content')
    assert path.read_bytes() == b'content'


class Mounted(LocalBackend):
    """Local files of a user's own backend, which is not to be replaced."""


@pytest.mark.parametrize(
    'uri, given, expected',
    [
        ('runs/1', None, dict(backend='mmattn.atomic')),
        ('runs/1', dict(backend='local'), dict(backend='mmattn.atomic')),
        ('http://host/runs/1', None, None),
        ('http://host/runs/1', dict(backend='http'), dict(backend='http')),
        ('runs/1', dict(backend='mounted'), dict(backend='mounted')),
    ],
    ids=['default', 'local', 'remote', 'remote-backend', 'own-backend'],
)
def test_only_plain_local_files_are_made_atomic(monkeypatch, uri, given, expected):
    monkeypatch.setitem(backends, 'mounted', Mounted)
    assert atomic_backend_args(uri, given) == expected
