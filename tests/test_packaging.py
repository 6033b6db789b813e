"""The contents of a wheel and an sdist; a wheel alone is enough."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from installed import ROOT, build

MIM = (
    '.mim/model-index.yml',
    '.mim/configs/_base_/models/mask_rcnn_fpn.py',
    '.mim/configs/mask_rcnn/ivit_t_3x_coco.py',
    '.mim/configs/mask_rcnn/metafile.yml',
    '.mim/tools/train.py',
    '.mim/tools/test.py',
)
PAGE = ('index.html', 'model.js', 'page.js')


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    return build('wheel', tmp_path_factory.mktemp('wheel'))


def test_wheel_carries_mim_and_package_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = {f'mmattn/{name}' for name in MIM} - names
    assert not missing
    assert {f'mmattn/export/page/{name}' for name in PAGE} <= names
    assert not [name for name in names if '__pycache__' in name]
    assert any(name.endswith('licenses/LICENSE') for name in names)
    assert not [name for name in names if name.endswith('.pth')]
    # No compiler is needed unless one asks for the compiled operators.
    assert wheel.name.endswith('-py3-none-any.whl')
    suffixes = {Path(name).suffix for name in names}
    assert not suffixes & {'.so', '.cpp', '.cu', '.cuh', '.h', '.inl'}


@pytest.mark.slow
def test_sdist_carries_what_a_wheel_is_built_from(tmp_path):
    sdist = build('sdist', tmp_path)
    with tarfile.open(sdist) as archive:
        names = {name.partition('/')[2] for name in archive.getnames()}
    wanted = {name.removeprefix('.mim/') for name in MIM}
    wanted |= {'setup.py', 'requirements/mm.txt', 'mmattn/ops/common/operator.py'}
    wanted |= {'projects/example_project/landmark_pyramid.py'}
    csrc = (ROOT / 'mmattn' / 'ops' / 'csrc').iterdir()
    wanted |= {f'mmattn/ops/csrc/{path.name}' for path in csrc}
    wanted |= {f'mmattn/export/page/{name}' for name in PAGE}
    assert not wanted - names


def compiled_operators(wanted: str, fails: bool = True, **environment: str) -> str:
    """Return what setup.py says of a value of MMATTN_BUILD_OPS."""
    environment = os.environ | {'MMATTN_BUILD_OPS': wanted} | environment
    options = dict(cwd=ROOT, env=environment, capture_output=True, text=True)
    done = subprocess.run([sys.executable, 'setup.py', '--version'], **options)
    assert bool(done.returncode) is fails
    return done.stderr


def test_compiled_operators_need_the_stable_abi(tmp_path):
    older = "import torch; torch.__version__ = type(torch.__version__)('2.9.1')"
    (tmp_path / 'sitecustomize.py').write_text(older)
    said = compiled_operators('1', PYTHONPATH=str(tmp_path))
    assert 'PyTorch 2.10 or newer, got 2.9.1' in said
    assert "must be 0, 1, cpu or cuda, got 'yes'" in compiled_operators('yes')


@pytest.mark.slow
def test_cuda_kernels_need_a_library_to_link(tmp_path):
    """The linker is asked first: the compilation takes minutes."""
    (tmp_path / 'sitecustomize.py').write_text(
        "import torch; torch.version.cuda = '13.0'"
    )
    (tmp_path / 'bin').mkdir()
    for name, script in (
        ('nvcc', ''),
        ('c++', 'echo cannot find -lcudart >&2; exit 1'),
    ):
        (tmp_path / 'bin' / name).write_text(f'#!/bin/sh\n{script}\n')
        (tmp_path / 'bin' / name).chmod(0o755)
    environment = dict(PYTHONPATH=str(tmp_path), CUDA_HOME=str(tmp_path))
    said = compiled_operators('cuda', **environment, CXX=str(tmp_path / 'bin/c++'))
    assert 'does not find libcudart (cannot find -lcudart): set LIBRARY_PATH' in said
    said = compiled_operators('1', False, **environment, CXX=str(tmp_path / 'none'))
    assert 'MMATTN_BUILD_OPS=1 builds no CUDA kernels: the linker' in said


def test_editable_install_links_mim():
    for entry in ('configs', 'tools', 'model-index.yml'):
        assert (ROOT / 'mmattn' / '.mim' / entry).resolve() == ROOT / entry


@pytest.mark.slow
def test_wheel_works_in_a_clean_environment(wheel, tmp_path):
    """Installs the wheel with its mm extra and uses it outside the checkout."""
    venv.create(tmp_path / 'venv', with_pip=True)
    python = tmp_path / 'venv' / 'bin' / 'python'
    subprocess.run([python, '-m', 'pip', 'install', '-q', f'{wheel}[mm]'], check=True)
    program = (
        'import mmattn, torch\n'
        'from mmengine.config import Config\n'
        'from mmengine.registry import MODELS, init_default_scope\n'
        "cfg = Config.fromfile('user.py')\n"
        'init_default_scope(cfg.default_scope)\n'
        'model = MODELS.build(cfg.model)\n'
        'print(type(model.backbone).__module__, mmattn.__file__)\n'
    )
    (tmp_path / 'user.py').write_text(
        "_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'\n"
    )
    options = dict(cwd=tmp_path, capture_output=True, text=True, check=True)
    done = subprocess.run([python, '-c', program], **options)
    assert 'mmattn.models.backbones.ivit' in done.stdout
    assert str(tmp_path) in done.stdout


def test_pages_and_the_extension_name_the_same_versions():
    runtime = (ROOT / 'requirements/runtime.txt').read_text()
    floor = re.search(r'^torch>=(\S+)$', runtime, re.MULTILINE)[1]
    project = (ROOT / 'pyproject.toml').read_text()
    python = re.search('requires-python = ">=(.*)"', project)[1]
    readme = (ROOT / 'README.md').read_text()
    assert f'requires Python {python} and PyTorch {floor} or newer' in readme
    page = (ROOT / 'docs/install.md').read_text()
    assert f'| PyTorch | {floor} and newer |' in page
    assert f'| Python | {python} and newer |' in page
    assert f"('torch=={floor}.*', '{python}')" in (ROOT / 'noxfile.py').read_text()
    abi = ', '.join(floor.split('.'))
    assert f'STABLE_ABI = ({abi})' in (ROOT / 'setup.py').read_text()
