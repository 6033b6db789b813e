"""Builds the compiled extension, and its CUDA kernels for a CPU, once a run."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from mmattn.ops.common import extension

ROOT = Path(__file__).parents[2]
CSRC = ROOT / 'mmattn' / 'ops' / 'csrc'
TORCH = Path(torch.__file__).parent
INCLUDES = [f'-I{folder}' for folder in (CSRC, TORCH / 'include')]
STABLE_ABI = '-DTORCH_TARGET_VERSION=0x020a000000000000'  # as in setup.py


def run(command, **environment) -> str:
    """Return the output of a command."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def needs(compiler: str):
    return pytest.mark.skipif(
        shutil.which(compiler) is None, reason=f'there is no {compiler} here'
    )


NEEDED = [needs('c++'), *([pytest.mark.slow] if extension.UNAVAILABLE else [])]
COMPILED = pytest.param('cpp', marks=NEEDED)
by_compiled = pytest.mark.parametrize('backend', [COMPILED])
by_cpu_backend = pytest.mark.parametrize('backend', ['torch', COMPILED])


def build(wanted: str, **environment: str) -> tuple[Path, str]:
    """The library that setup.py builds on a wish, and what the compilers printed."""
    folder = new_folder()
    printed = run(
        [sys.executable, 'setup.py', 'build_ext']
        + ['--build-lib', str(folder / 'lib'), '--build-temp', str(folder / 'temp')],
        MMATTN_BUILD_OPS=wanted,
        MAX_JOBS='2',
        **environment,
    )
    return folder / 'lib' / 'mmattn' / 'ops' / '_extension.so', printed


@functools.cache
def build_extension() -> Path:
    """The library for the CPU."""
    return build('cpu')[0]


@functools.cache
def load_extension():
    """Makes `torch.ops.mmattn_extension` work, by what is installed if it is."""
    if extension.UNAVAILABLE:
        assert extension.load(build_extension()) is None


@functools.cache
def load_emulation() -> Path:
    """Makes `torch.ops.mmattn_emulated`: the CUDA kernels for tensors on a CPU."""
    path = new_folder() / 'cuda_on_cpu.so'
    run(
        ['c++', '-O1', '-std=c++20', '-fPIC', '-shared', '-Wno-unknown-pragmas']
        + [STABLE_ABI, *INCLUDES]
        + [str(Path(__file__).with_name('cuda_on_cpu.cpp')), '-o', str(path)]
        + [f'-L{TORCH / "lib"}', '-ltorch', '-ltorch_cpu', '-lc10']
    )
    torch.ops.load_library(path)
    return path


def cuda_home() -> str:
    """Return the folder of nvcc, which may be on the path as a link or a script."""
    printed = run(['nvcc', '--dryrun', '-x', 'cu', '-c', os.devnull, '-o', os.devnull])
    top = re.search(r'TOP=(\S+)', printed).group(1)
    return str(Path(top).resolve())


def new_folder() -> Path:
    """Outlives the modules of a run: a library cannot be loaded twice."""
    folder = tempfile.mkdtemp(prefix='mmattn_extension_')
    atexit.register(shutil.rmtree, folder)
    return Path(folder)
