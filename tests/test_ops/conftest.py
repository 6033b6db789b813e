"""Fixtures: fresh memory is NaN until it is written, and forms of small maps."""

import sys

import pytest
import torch
from compiled_extension import load_extension
from interpreter import INTERPRETED, Interpreter

from mmattn.ops.common import extension
from mmattn.ops.deformable_attention import torch_impl as deformable_impl
from mmattn.ops.landmark_attention import torch_impl as landmark_impl
from mmattn.ops.masked_attention import decomposition
from mmattn.ops.masked_attention import torch_impl as masked_impl

# PyTorch remembers its constructors when a device context is first used. It must not
# remember those that the next fixture puts in their place.
with torch.device('meta'):
    torch.empty(0)


def pytest_configure(config):
    line = 'interpreted: runs in a process that interprets Triton kernels'
    config.addinivalue_line('markers', line)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if INTERPRETED or not pyfuncitem.get_closest_marker('interpreted'):
        return None
    pytest.importorskip('triton')
    session = pyfuncitem.session
    if not hasattr(session, 'interpreter'):
        marked = (x for x in session.items if x.get_closest_marker('interpreted'))
        session.interpreter = Interpreter(sorted({str(x.path) for x in marked}))
    session.interpreter.run(pyfuncitem.nodeid)
    return True


def pytest_sessionfinish(session):
    if hasattr(session, 'interpreter'):
        session.interpreter.close()


@pytest.fixture(autouse=True)
def nan_in_fresh_memory(monkeypatch):
    for name in ('empty', 'empty_like'):
        monkeypatch.setattr(torch, name, _filling(getattr(torch, name)))


def _filling(function):
    def filled(*args, **kwargs):
        out = function(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get('__name__', '')
        package, _, module = caller.rpartition('.')
        kernels = module.endswith('_impl') or module.startswith('torch_')
        kernels |= module == 'workspace'
        if package.startswith('mmattn.ops') and kernels and out.is_floating_point():
            out.fill_(float('nan'))
        return out

    return filled


@pytest.fixture
def compiled(monkeypatch):
    """Load the extension, and build it first where it is not installed."""
    load_extension()
    monkeypatch.setattr(extension, 'UNAVAILABLE', None)


@pytest.fixture(autouse=True)
def compiled_for_its_backend(request):
    call = getattr(request.node, 'callspec', None)
    if call and call.params.get('backend') == 'cpp':
        request.getfixturevalue('compiled')


@pytest.fixture(autouse=True)
def small_maps_do_not_take_the_definition(monkeypatch):
    monkeypatch.setattr(landmark_impl, 'REFERENCE_ELEMENTS', -1)
    monkeypatch.setattr(masked_impl, 'REFERENCE_TOKENS', -1)
    monkeypatch.setattr(deformable_impl, 'REFERENCE_ELEMENTS', -1)


@pytest.fixture
def linear(monkeypatch):
    """Masked attention cuts small maps into tiles, too."""
    monkeypatch.setattr(decomposition, 'DENSE_TOKENS', 0)
    monkeypatch.setattr(decomposition, 'TILE', 2)
