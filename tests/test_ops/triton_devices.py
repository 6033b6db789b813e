"""Devices for tests of Triton kernels: a GPU, and Triton's interpreter.

The interpreter has to be chosen before Triton is imported, so `run_under_interpreter`
runs a test file once more in a process that has TRITON_INTERPRET=1.
"""

import functools
import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
DEVICES = [
    pytest.param(
        'cpu',
        marks=pytest.mark.skipif(not INTERPRETED, reason='see test_under_interpreter'),
    ),
    pytest.param(
        'cuda',
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device'),
        ],
    ),
]

every_device = pytest.mark.parametrize('device', DEVICES)
every_dtype = pytest.mark.parametrize(
    'dtype', [torch.float32, torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:]
)
# What only the slow run interprets, and a GPU runs always.
seldom_interpreted = pytest.mark.slow if INTERPRETED else lambda test: test
_not_within = pytest.mark.skipif(INTERPRETED, reason='this is the inner run')
_every_run = pytest.mark.parametrize(
    'cases', ['not slow', pytest.param('slow', marks=pytest.mark.slow)]
)


def outer_run(test):
    return _not_within(_every_run(test))


def seldom(*values, id: str | None = None):
    """Return a parameter that only the slow run interprets."""
    marks = [pytest.mark.slow] if INTERPRETED else []
    return pytest.param(*values, marks=marks, id=id)


def each_of(cases: dict[str, object], *rare: str) -> list:
    """Return parameters, of which only the slow run interprets those named."""
    assert cases.keys() >= set(rare)
    return [
        seldom(case, id=name) if name in rare else pytest.param(case, id=name)
        for name, case in cases.items()
    ]


def opcheck(operator, inputs, device: str):
    """Run `torch.library.opcheck` on an operator that takes the backend's name.

    All backends are traced alike for a compiler, so the slow interpreter skips that
    test.
    """
    tests = ['test_schema', 'test_faketensor']
    if device == 'cuda':
        tests.append('test_aot_dispatch_dynamic')
    torch.library.opcheck(operator, inputs, test_utils=tests)


def patch_language_once():
    """Let Triton's interpreter patch its language once for each function.

    By default it does so at each call within a kernel, which takes a third of the time;
    only the first call changes anything.
    """
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang

    patch = functools.cache(_patch_lang)

    def call(self, *args, **kwargs):
        patch(self.fn)
        return self.rewrite()(*args, **kwargs)

    InterpretedFunction.__call__ = call


if INTERPRETED:
    patch_language_once()


def run_under_interpreter(file: str, cases: str):
    run = subprocess.run(
        [sys.executable, '-m', 'pytest', file, '-q', '-m', f'{cases} and not gpu'],
        env=os.environ | {'TRITON_INTERPRET': '1', 'CUDA_VISIBLE_DEVICES': ''},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
