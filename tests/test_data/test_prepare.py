"""mmattn data prepare: downloads from a local server, and their folders."""

import hashlib
import http.server
import io
import re
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from mmattn.apis import sources
from mmattn.data import prepare as tool
from mmattn.weights import download as downloads

CONTENT = bytes(range(256)) * 40_000  # 10 MB, ten blocks
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serve `files`; `faults` are what goes wrong in the next requests.

    No thread outlives a test, and a client that leaves is no error: Python 3.11 parses
    code to print a traceback, and two threads that parse at a time fail.
    """

    daemon_threads = False

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.files, self.faults, self.requests, self.tag = {}, [], [], None

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def url(self, name: str) -> str:
        return f'http://127.0.0.1:{self.server_port}/{name}'


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        wanted = self.headers.get('Range')
        self.server.requests.append(wanted)
        fault = self.server.faults.pop(0) if self.server.faults else None
        content = self.server.files.get(self.path.lstrip('/'))
        if content is None or isinstance(fault, int):
            self.send_error(fault or 404)
            return
        start = 0
        if wanted and fault != 'no ranges':
            start = int(re.fullmatch(r'bytes=(\d+)-', wanted)[1])
        if start >= len(content) > 0 and start:
            self.send_response(416)
            self.send_header('Content-Length', '0')
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if self.server.tag:
            self.send_header('ETag', self.server.tag)
        length = 'abc' if fault == 'length' else len(content) - start
        self.send_header('Content-Length', str(length))
        self.end_headers()
        end = start + 3_000_000 if fault == 'break off' else len(content)
        for _ in range(5 if fault == 'slow' else 0):
            self.wfile.write(content[start : start + 1000])
            start += 1000
            time.sleep(0.3)
        self.wfile.write(content[start:end])


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), daemon=True
        )
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, folder: Path, **options) -> Path:
    server.files['file.zip'] = CONTENT
    options = dict(digest=MD5, wait=0.0, resume=True) | options
    return downloads.download(server.url('file.zip'), folder / 'file.zip', **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_once(server, tmp_path):
    assert get(server, tmp_path / 'new').read_bytes() == CONTENT
    get(server, tmp_path / 'new')
    assert server.requests == [None]
    assert names(tmp_path / 'new') == ['file.zip']


def test_a_broken_connection_is_continued_and_by_another_call_too(server, tmp_path):
    server.faults = ['break off', 503, 'break off', 503, 503]
    with pytest.raises(downloads.DownloadError, match=r'keeps 6000000 bytes; run the'):
        get(server, tmp_path, attempts=2)
    assert names(tmp_path) == ['file.zip.part']
    assert get(server, tmp_path).read_bytes() == CONTENT
    first, last = 'bytes=3000000-', 'bytes=6000000-'
    assert server.requests == [None, first, first, last, last, last]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.faults = ['break off', 'no ranges']
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_complete_part_needs_no_byte(server, tmp_path):
    (tmp_path / 'file.zip.part').write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == [f'bytes={len(CONTENT)}-']


@pytest.mark.parametrize('part', [b'another beginning', CONTENT + b'more'])
def test_another_part_is_discarded(server, tmp_path, part):
    (tmp_path / 'file.zip.part').write_bytes(part)
    with pytest.raises(downloads.DownloadError, match=f'expected {MD5}; it was'):
        get(server, tmp_path)
    assert names(tmp_path) == []
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_foreign_file_is_kept(server, tmp_path):
    (tmp_path / 'file.zip').write_bytes(b'mine')
    with pytest.raises(downloads.DownloadError, match='remove the file to download'):
        get(server, tmp_path)
    assert (tmp_path / 'file.zip').read_bytes() == b'mine'
    assert server.requests == []


def test_a_missing_file_is_not_tried_again(server, tmp_path):
    with pytest.raises(downloads.DownloadError, match='404'):
        downloads.download(server.url('none'), tmp_path / 'none', MD5)
    assert server.requests == [None]


@pytest.mark.parametrize('tag', ['"1"', 'W/"1"', None])
def test_without_a_digest_a_known_version_is_continued(server, tmp_path, tag):
    server.tag, server.faults = tag, ['break off', 'length']
    options = dict(digest='', resume=False)
    assert get(server, tmp_path, **options).read_bytes() == CONTENT
    assert server.requests == [None, 'bytes=3000000-' if tag == '"1"' else None]
    assert names(tmp_path) == ['file.zip']


@pytest.mark.parametrize(
    'faults, options, error, message',
    [
        (['break off'] * 9, dict(digest=''), ConnectionError, r'3000000 of 10240000'),
        ([503] * 9, {}, ConnectionError, r'HTTPError .*503.*\(2 attempts\)'),
        ([404], {}, FileNotFoundError, '404'),
        ([], dict(limit=9_000_000), ValueError, 'larger than 8 MiB'),
        ([], dict(digest='00ff'), ValueError, 'SHA-256 [0-9a-f]{64}, expected 00ff'),
        ([], dict(fault=lambda path: 'is cut'), ValueError, 'file.zip is cut; it was'),
    ],
)
def test_what_fails_leaves_nothing(server, tmp_path, faults, options, error, message):
    server.faults = faults
    with pytest.raises(error, match=message) as raised:
        get(server, tmp_path, **dict(resume=False, attempts=2) | options)
    assert isinstance(raised.value, downloads.DownloadError)
    assert '\n' not in str(raised.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    'answer, error, message',
    [
        (b'\r\n\r\n', ConnectionError, 'BadStatusLine'),
        (b'HTTP/1.1 301\r\nLocation: http://\xff..\r\n\r\n', ValueError, ''),
        (b'HTTP/1.1 200\r\nContent-Length: 9\r\n\r\na', ConnectionError, '1 of 9'),
    ],
    ids=['no status', 'redirected to no address', 'cut'],
)
def test_answers_that_break_http_are_one_line(tmp_path, answer, error, message):
    class Broken(http.server.BaseHTTPRequestHandler):
        def handle(self):
            self.rfile.readline()
            self.wfile.write(answer)

    with http.server.HTTPServer(('127.0.0.1', 0), Broken) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        url = f'http://127.0.0.1:{server.server_port}/image.png'
        with pytest.raises(error, match=f'(?s)^[^\n]*{message}[^\n]*$'):
            next(sources.pictures([url]))
        server.shutdown()


def test_a_server_that_holds_up_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, 'SLOWEST', 10**12)
    server.faults = ['slow']
    with pytest.raises(downloads.DownloadError, match='fewer than'):
        get(server, tmp_path, timeout=1)


@pytest.mark.parametrize('url', ['http://a..b/c', 'http://[/c', 'http://a:b/c'])
def test_an_address_that_is_none_is_one_line(tmp_path, url):
    with pytest.raises(downloads.DownloadError, match='^http.*$'):
        downloads.download(url, tmp_path / 'file', attempts=1)


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def coco(server, monkeypatch):
    """A COCO of four images, under the names of the publisher's files."""
    files = {'annotations': ['', 'instances_val2017.json']}
    files |= {f'{split}2017': ['', '0.jpg', '1.jpg'] for split in ('train', 'val')}
    out, archives = tool.DATA_SETS['coco']
    small = []
    for archive in archives:
        names = [f'{archive.folder}/{name}' for name in files[archive.folder]]
        content = zipped({name: name.encode() for name in names})
        server.files[Path(archive.url).name] = content
        changes = dict(md5=hashlib.md5(content).hexdigest(), gigabytes=1e-6)
        changes['images'] = dict.fromkeys(archive.images, 2)
        small.append(replace(archive, **changes))
    monkeypatch.setitem(tool.DATA_SETS, 'coco', (out, small))
    return server.url('')


def run(folder: Path, *args: str):
    tool.main([*args, '--out', f'{folder}/coco', '--archives', f'{folder}/cache'])


def tree(folder: Path) -> list[str]:
    files = (path for path in folder.rglob('*') if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in files)


def test_coco_is_laid_out_as_the_configs_expect(coco, server, tmp_path):
    from mmengine.config import Config

    run(tmp_path, 'coco', '--mirror', coco, '--parts', 'val', '--keep')
    assert names(tmp_path / 'cache') == ['val2017.zip']
    run(tmp_path, 'coco', '--mirror', coco)
    assert len(server.requests) == 3
    assert tree(tmp_path / 'coco') == [
        'annotations/instances_val2017.json',
        *(f'{split}2017/{i}.jpg' for split in ('train', 'val') for i in range(2)),
    ]
    assert names(tmp_path / 'cache') == ['val2017.zip']  # was kept
    path = Path(tool.__file__).parents[2] / 'configs/_base_/datasets/coco_instance.py'
    cfg = Config.fromfile(path)
    val = cfg.val_dataloader.dataset
    assert Path(val.data_root) == Path(tool.DATA_SETS['coco'][0])
    for name in (val.ann_file, val.data_prefix.img):
        assert (tmp_path / 'coco' / name).exists()
    (tmp_path / 'coco/train2017/1.jpg').unlink()
    with pytest.raises(ValueError, match=r'train2017 has 1 files, expected 2; remove'):
        run(tmp_path, 'coco', '--mirror', coco)


def test_unknown_parts(tmp_path):
    with pytest.raises(ValueError, match=r"must be among .*, got \['test'\]"):
        run(tmp_path, 'coco', '--parts', 'test')


def test_a_full_disk_is_noticed_before_the_download(coco, server, tmp_path):
    huge = replace(tool.DATA_SETS['coco'][1][0], gigabytes=1e9)
    with pytest.raises(ValueError, match='choose another disk with --out'):
        tool.prepare([huge], tmp_path / 'coco', tmp_path / 'cache')
    assert server.requests == []


@pytest.mark.parametrize(
    'content, message',
    [
        (b'no zip', r'a\.zip is damaged: .*not a zip file'),
        (zipped({'val2014/0.jpg': b''}), r"hold val2017/ only, got \['val2014'\]"),
    ],
    ids=['damaged', 'folder'],
)
def test_another_archive_is_refused(tmp_path, content, message):
    path = tmp_path / 'a.zip'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        tool.unpack(path, 'val2017', tmp_path / 'coco')


def test_imagenet_is_unpacked_into_folders_of_classes(tmp_path, monkeypatch):
    """torchvision reads the archives; an error of its names the file to get."""
    from torchvision.datasets import imagenet

    def parse(archives, folder):
        assert archives == tmp_path / 'tars'
        Path(folder, 'n01').mkdir()
        Path(folder, 'n01/0.JPEG').touch()

    def missing(*args, **kwargs):
        raise RuntimeError('The archive ILSVRC2012_img_val.tar is not present')

    arguments = ['imagenet', f'--out={tmp_path}/in', f'--archives={tmp_path}/tars']
    monkeypatch.setattr(tool, 'check_space', lambda *args: None)
    monkeypatch.setattr(tool, 'IMAGENET_IMAGES', {'train': 1, 'val': 1})
    monkeypatch.setattr(imagenet, 'parse_devkit_archive', lambda archives: None)
    monkeypatch.setattr(imagenet, 'parse_train_archive', parse)
    monkeypatch.setattr(imagenet, 'parse_val_archive', missing)
    with pytest.raises(ValueError, match='ILSVRC2012_img_val.tar'):
        tool.main(arguments)
    assert names(tmp_path / 'in') == ['train']
    monkeypatch.setattr(imagenet, 'parse_train_archive', missing)  # is complete
    monkeypatch.setattr(imagenet, 'parse_val_archive', parse)
    tool.main(arguments)
    assert tree(tmp_path / 'in') == ['train/n01/0.JPEG', 'val/n01/0.JPEG']
