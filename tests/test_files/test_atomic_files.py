"""Files that belong together are written all or not at all."""

import errno
import os
import resource

import pytest

from mmattn.files.atomic import write_together

OLD = {'a.bin': b'old a', 'a.xml': b'old x'}
NEW = {'a.bin': b'new a', 'a.xml': b'new x'}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(folder, files):
    write_together({folder / name: data for name, data in files.items()})


@pytest.mark.parametrize('old', [{}, {'a.bin': b'old a'}, OLD])
def test_a_rename_that_fails(tmp_path, monkeypatch, old):
    """Each rename fails once; the last attempt has none that fails."""
    replace, calls = os.replace, []

    def failing(source, target):
        calls.append((source, target))
        if len(calls) == fails_at:
            raise PermissionError(errno.EACCES, 'Permission denied', str(source))
        replace(source, target)

    monkeypatch.setattr(os, 'replace', failing)
    for fails_at in range(1, len(old) + len(NEW) + 1):
        for name, data in old.items():
            (tmp_path / name).write_bytes(data)
        calls.clear()
        with pytest.raises(PermissionError, match=r"previous content .*/a\.(bin|xml)'"):
            write(tmp_path, NEW)
        assert content(tmp_path) == old, f'rename {fails_at}'
    fails_at = 0
    write(tmp_path, NEW)
    assert content(tmp_path) == NEW


def test_a_full_disk(tmp_path):
    """There is room for the first file alone."""
    write(tmp_path, OLD)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    try:
        with pytest.raises(OSError, match=r'previous content is untouched.*a\.xml'):
            write(tmp_path, NEW | {'a.xml': bytes(1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert content(tmp_path) == OLD


def test_old_and_new_are_never_mixed(tmp_path, monkeypatch):
    """As if the process was killed before or after each rename."""
    write(tmp_path, OLD)
    replace, seen = os.replace, []

    def noted(source, target):
        seen.append(content(tmp_path))
        replace(source, target)
        seen.append(content(tmp_path))

    monkeypatch.setattr(os, 'replace', noted)
    write(tmp_path, NEW)
    assert len(seen) == 8
    for files in seen:
        named = {name: data for name, data in files.items() if name in OLD}
        assert 'a.xml' not in named or named in (OLD, NEW)
