"""Packaging: metadata is in pyproject.toml; this file adds what is built.

OpenMMLab tools look for a package's configs, tools and model index in
`<package>/.mim`. A wheel (also one that is built from an sdist) carries copies; an
editable install links to the checkout, so that edits to configs take effect.

The compiled operators of `mmattn/ops/csrc` are built on request alone:
`MMATTN_BUILD_OPS=1 pip install --no-build-isolation .` (`cpu` or `cuda` in place of 1
to insist). Otherwise nothing is compiled, and a wheel is of pure Python. A wheel that
carries them serves every Python: the library uses PyTorch's stable ABI, and none of
Python's.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
MIM_ENTRIES = ('configs', 'tools', 'model-index.yml')
CSRC = Path('mmattn/ops/csrc')
BUILD_VARIABLE = 'MMATTN_BUILD_OPS'
STABLE_ABI = (2, 10)  # of PyTorch; later ones load what was built with it
TORCH_TARGET_VERSION = '0x020a000000000000'
CUDA_ARCHITECTURES = '8.0;9.0+PTX'


class build_py_with_extras(build_py):
    def run(self):
        super().run()
        root = ROOT if self.editable_mode else Path(self.build_lib)
        self._fill_mim(root / 'mmattn' / '.mim', link=self.editable_mode)

    def _fill_mim(self, mim_dir: Path, link: bool):
        if mim_dir.exists():
            shutil.rmtree(mim_dir)
        mim_dir.mkdir(parents=True)
        for entry in MIM_ENTRIES:
            source, target = ROOT / entry, mim_dir / entry
            if link:
                target.symlink_to(source, target_is_directory=source.is_dir())
            elif source.is_dir():
                shutil.copytree(
                    source, target, ignore=shutil.ignore_patterns('__pycache__')
                )
            else:
                shutil.copy2(source, target)


class wheel_of_any_python(bdist_wheel):
    def get_tag(self):
        return 'py3', 'none', super().get_tag()[2]


def link_error(library: str, folders: list[str]) -> str:
    """Return the first line of the linker that does not find a library, or ''."""
    with tempfile.TemporaryDirectory() as folder:
        command = shlex.split(os.environ.get('CXX', 'c++'))
        command += ['-shared', '-x', 'c++', os.devnull, '-o', f'{folder}/empty.so']
        command += [*(f'-L{path}' for path in folders), f'-l{library}']
        try:
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        except OSError as error:  # there is no such compiler
            return str(error)
    return done.stderr.partition('\n')[0] if done.returncode else ''


def compiled_operators(wanted: str) -> dict:
    """Arguments of `setup` that build the extension, none if it is not wanted."""
    if wanted in ('', '0'):
        return {}
    if wanted not in ('1', 'cpu', 'cuda'):
        raise SystemExit(f'{BUILD_VARIABLE} must be 0, 1, cpu or cuda, got {wanted!r}')
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        raise SystemExit(
            f'{BUILD_VARIABLE} compiles against the installed PyTorch ({error}): '
            'install it first, and give pip --no-build-isolation'
        ) from error
    if torch.__version__ < STABLE_ABI:
        raise SystemExit(
            f'{BUILD_VARIABLE} needs the stable ABI of PyTorch '
            f'{".".join(map(str, STABLE_ABI))} or newer, got {torch.__version__}'
        )
    nvcc = Path(cpp_extension.CUDA_HOME or '', 'bin', 'nvcc')
    has_cuda = torch.version.cuda is not None and nvcc.is_file()
    if wanted == 'cuda' and not has_cuda:
        raise SystemExit(
            f'{BUILD_VARIABLE}=cuda needs a PyTorch with CUDA, and nvcc in CUDA_HOME: '
            f'got PyTorch {torch.__version__}, CUDA_HOME={cpp_extension.CUDA_HOME}'
        )
    with_cuda = has_cuda and wanted != 'cpu'
    if with_cuda and (
        error := link_error('cudart', cpp_extension.library_paths('cuda'))
    ):
        # Before the minutes that the compilation takes.
        reason = f'the linker does not find libcudart ({error}): set LIBRARY_PATH'
        if wanted == 'cuda':
            raise SystemExit(f'{BUILD_VARIABLE}=cuda: {reason}')
        print(f'{BUILD_VARIABLE}=1 builds no CUDA kernels: {reason}', file=sys.stderr)
        with_cuda = False
    make, flags, sources = cpp_extension.CppExtension, {}, sorted(CSRC.glob('*.cpp'))
    common = [f'-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}']
    # Nobody reads errors of math; to keep them GCC computes numbers one by one.
    flags['cxx'] = ['-O3', '-fno-math-errno', '-fno-trapping-math', *common]
    flags['cxx'] += ['-include', str(ROOT / CSRC / 'old_glibc.h')]
    # GCC's own headers of AVX-512 read what they call undefined. Clang knows no such
    # warning, and merges products and sums of different statements only on request.
    flags['cxx'] += ['-Wno-unknown-warning-option', '-Wno-maybe-uninitialized']
    flags['cxx'].append('-ffp-contract=fast')
    if with_cuda:
        make = cpp_extension.CUDAExtension
        flags['nvcc'] = ['-O3', '-DUSE_CUDA', *common]
        sources += sorted(CSRC.glob('*.cu'))
        if not torch.cuda.is_available():
            os.environ.setdefault('TORCH_CUDA_ARCH_LIST', CUDA_ARCHITECTURES)
    extension = make(
        'mmattn.ops._extension',
        [str(path) for path in sources],
        depends=[str(path) for path in sorted(CSRC.iterdir())],
        extra_compile_args=flags,
        extra_link_args=['-Wl,-S'],  # without debug information; Apple's linker, too
        py_limited_api=True,
    )
    build = cpp_extension.BuildExtension.with_options(no_python_abi_suffix=True)
    return dict(
        ext_modules=[extension],
        cmdclass={'build_ext': build, 'bdist_wheel': wheel_of_any_python},
    )


arguments = compiled_operators(os.environ.get(BUILD_VARIABLE, ''))
arguments.setdefault('cmdclass', {})['build_py'] = build_py_with_extras
setup(**arguments)
