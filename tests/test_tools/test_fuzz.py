"""The fuzzer finds what it looks for, and finds nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

for package in ('mmdet', 'mmpretrain', 'onnx', 'onnxruntime', 'safetensors'):
    pytest.importorskip(package)

ROOT = Path(__file__).parents[2]
from tools.dev import fuzz  # noqa: E402


def fail(error: Exception):
    raise error


FOUND = {
    b'ends': (lambda path: os._exit(3), 'ended with 3'),
    b'hangs': (lambda path: time.sleep(9), 'took too long'),
    b'grows': (lambda path: bytearray(3 << 30), 'MemoryError'),
    b'traces': (lambda path: fail(KeyError('id')), "KeyError: 'id'"),
    b'two lines': (lambda path: fail(ValueError('a\nb')), 'a\nb'),
}


@pytest.mark.parametrize(('read', 'message'), FOUND.values(), ids=FOUND)
def test_findings_are_told_and_the_rest_goes_on(tmp_path, monkeypatch, read, message):
    contents = iter([b'0', b'1', b'2'])  # each process begins with the first

    def act(path):
        if path.read_bytes() == b'1':
            read(path)

    form = fuzz.Format('', bytes, lambda rng, content: next(contents), act)
    monkeypatch.setitem(fuzz.FORMATS, 'act', form)
    monkeypatch.setattr(fuzz, 'SECONDS', 1)
    monkeypatch.chdir(tmp_path)
    answers = fuzz.fuzz('act', range(3))
    assert [kind for _, kind, *_ in answers] == ['read', 'finding', 'read']
    assert message in answers[1][2]


@pytest.mark.parametrize('name', fuzz.FORMATS)
def test_a_number_repeats_its_mutation(name):
    form = fuzz.FORMATS[name]
    first, again = (
        [form.mutate(fuzz.rng_of(name, number), form.make()) for number in range(8)]
        for _ in range(2)
    )
    assert first == again
    assert len({*first}) > 4


@pytest.mark.slow
def test_nothing_is_found(tmp_path):
    done = subprocess.run(
        [sys.executable, '-m', 'tools.dev.fuzz', '--count', '50'],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
