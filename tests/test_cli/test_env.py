"""mmattn env: what it finds, what it says to run, and that it needs torch alone."""

import json
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from fresh import run_python

from mmattn.cli import env, environment
from mmattn.ops.common import extension


def distributions(text: str) -> dict[str, str]:
    return dict(each.split('==') for each in text.split())


MAINTAINED = distributions(
    'onedl-mmengine==0.10.12 onedl-mmcv==2.3.6 onedl-mmdetection==3.5.1 '
    'onedl-mmsegmentation==1.4.2 onedl-mmpretrain==1.3.6 numpy==2.2.6 setuptools==84.2'
)
ORIGINALS = distributions(
    'mmengine==0.10.7 mmcv==2.1.0 mmdet==3.3.0 mmsegmentation==1.2.2 mmpretrain==1.2.0 '
    'numpy==1.26.4 setuptools==80.10.0'
)


@pytest.fixture
def install(monkeypatch):
    """Makes these distributions the installed ones, and modules present or not."""
    real = environment.find_spec

    def apply(versions: dict[str, str], **modules: bool):
        def version(name: str) -> str:
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        def find_spec(name: str):
            if name in modules:
                return SimpleNamespace() if modules[name] else None
            return real(name)

        monkeypatch.setattr(metadata, 'version', version)
        monkeypatch.setattr(environment, 'find_spec', find_spec)

    return apply


def test_who_provides_the_operators_of_mmcv(monkeypatch, tmp_path):
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(environment, 'find_spec', {'mmcv': found}.get)
    assert 'mmattn.compat provides' in environment.mmcv_operators()
    (tmp_path / '_ext.py').touch()
    assert environment.mmcv_operators() == f'compiled: {tmp_path / "_ext.py"}'
    monkeypatch.setattr(environment, 'find_spec', {}.get)
    assert environment.mmcv_operators() == 'mmcv is not installed'


MISMATCHES = {
    'both-families': (
        MAINTAINED | {'mmcv': '2.1.0'},
        'onedl-mmcv and mmcv overwrite one another',
        'pip uninstall -y onedl-mmcv mmcv && pip install onedl-mmcv',
    ),
    'mixed': (
        distributions('onedl-mmengine==0.10.12 onedl-mmcv==2.3.6 mmpretrain==1.2'),
        'mmpretrain: original mm packages beside maintained ones',
        'pip uninstall -y mmpretrain && pip install onedl-mmpretrain',
    ),
    'pkg_resources': (
        ORIGINALS | {'setuptools': '84.2'},
        'until 81 (installed: 84.2)',
        'pip install "setuptools<82"',
    ),
    'numpy-2': (
        ORIGINALS | {'numpy': '2.2.6'},
        'written for numpy 1, and numpy 2.2.6',
        'pip install "numpy<2"',
    ),
    'numpy-1': (
        MAINTAINED | {'numpy': '1.26.4'},
        'onedl-mmsegmentation needs numpy 2',
        'pip install "numpy>2"',
    ),
    'mmcv': (
        ORIGINALS | {'mmcv': '2.2.0'},
        'mmdet, mmseg: the original packages refuse mmcv 2.2',
        'pip install --no-build-isolation "mmcv>=2.0.0,<2.2.0"',
    ),
    'distutils': (MAINTAINED, 'needs distutils', 'pip install setuptools'),
}


@pytest.mark.parametrize('name', MISMATCHES)
def test_a_mismatch_is_named_with_its_mend(install, name):
    versions, what, remedy = MISMATCHES[name]
    install(versions, **{m: m != name for m in ('pkg_resources', 'distutils')})
    found = environment.installed_families()
    others = environment.installed_versions(environment.OTHERS)
    problems = [*environment.family_problems(found)]
    problems += environment.version_problems(found, others)
    assert [each.remedy for each in problems if what in each.what] == [remedy]


@pytest.mark.parametrize(
    'models, capability, triton, expected',
    [
        (None, None, True, None),
        ('GPU 0: H100', None, True, 'GPU 0: H100 is there'),
        ('GPU 0: H100', (9, 0), True, None),
        ('GPU 0: H100', (9, 0), False, 'no Triton'),
        ('GPU 0: B200', (10, 0), True, 'cuda:0 has compute capability 10.0'),
    ],
    ids=['no-gpu', 'unusable', 'fine', 'no-triton', 'architecture'],
)
def test_gpus(monkeypatch, install, models, capability, triton, expected):
    install(MAINTAINED, triton=triton)
    monkeypatch.setattr(torch.version, 'hip', None)
    for name, value in dict(
        is_available=capability is not None,
        get_arch_list=['sm_80', 'sm_90'],
        device_count=1,
        get_device_capability=capability,
    ).items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value: value)
    info = SimpleNamespace(nvidia_gpu_models=models)
    problems = [*environment.gpu_problems(info)]
    assert len(problems) == (expected is not None)
    assert all(expected in each.what and each.remedy for each in problems)


def test_every_operator_is_reported_with_the_backend_of_each_dtype(monkeypatch):
    monkeypatch.delenv('MMATTN_BACKEND', raising=False)
    rows, problems = environment.operator_backends()
    assert problems == []
    rows = [row for row in rows if row['device'] == 'cpu']
    assert {row['operator'] for row in rows} == {*environment.OPERATORS}
    rows = [row for row in rows if row['operator'] == 'landmark_attention']
    for row in rows:
        is_wide = row['dtype'] == 'float64' or extension.UNAVAILABLE
        assert row['backend'] == ('torch' if is_wide else 'cpp')
        assert 'CUDA' in row['unsupported']['triton']
    dtypes = {row['dtype'] for row in rows}
    assert dtypes == {'float32', 'float16', 'bfloat16', 'float64'}
    assert torch.get_default_dtype() == torch.float32

    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    operators = [environment.OPERATORS['landmark_attention']]
    rows, problems = environment.operator_backends(operators)
    assert {row['backend'] for row in rows} == {'reference'} and not problems
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    rows, problems = environment.operator_backends(operators)
    assert {row['backend'] for row in rows} == {None}
    assert {problem.remedy for problem in problems} == {'unset MMATTN_BACKEND'}
    assert "'nonsense'" in problems[0].what


def test_the_text_has_all_and_the_status_says_whether(install, monkeypatch, capsys):
    monkeypatch.delenv('MMATTN_BACKEND', raising=False)
    for name in ('import_problems', 'gpu_problems'):
        monkeypatch.setattr(environment, name, lambda *args: [])
    info = environment.get_env_info()
    monkeypatch.setattr(environment, 'get_env_info', lambda: info)
    landmark = dict(landmark_attention=environment.OPERATORS['landmark_attention'])
    monkeypatch.setattr(environment, 'OPERATORS', landmark)
    install(MAINTAINED | {'torch': '2.15.0'}, distutils=True)
    assert env.main([]) == 0
    out = capsys.readouterr().out
    assert 'onedl-mmdetection 3.5.1 (maintained)' in out
    assert 'landmark_attention cpu float32' in out and 'triton: runs on' in out
    assert out.endswith('Problems: none\n')

    install(MAINTAINED | {'torch': '2.9.1'}, distutils=True)
    assert env.main([]) == 1
    assert 'requires torch>=2.10, and 2.9.1 is installed' in capsys.readouterr().out

    install(MAINTAINED | {'mmdet': '3.3.0'}, distutils=True, pkg_resources=True)
    assert env.main([]) == 1
    out = capsys.readouterr().out
    assert 'run: pip uninstall -y onedl-mmdetection mmdet && pip install onedl-' in out

    assert env.main(['--json']) == 1
    found = json.loads(capsys.readouterr().out)
    assert found['mm packages']['mmdet'] == {
        'maintained': {'onedl-mmdetection': '3.5.1'},
        'original': {'mmdet': '3.3.0'},
    }
    assert {'what', 'remedy'} == set(found['problems'][0])


TORCH_ALONE = """
import sys
from importlib import metadata

real = metadata.version

def version(name):
    if 'mm' in name and name != 'mmattn' or name == 'timm':
        raise metadata.PackageNotFoundError(name)
    return real(name)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('mmengine', 'mmcv', 'mmdet', 'rich', 'timm'):
            raise ModuleNotFoundError(name)
        if name == 'torchvision':
            raise RuntimeError('operator torchvision::nms does not exist')

metadata.version = version
sys.meta_path.insert(0, Missing())
from mmattn.cli import env, environment
environment.find_spec = lambda name: None if name == 'mmcv' else object()
sys.exit(env.main())
"""


def test_it_needs_torch_alone_and_reports_a_broken_torchvision(tmp_path):
    done = run_python('-c', TORCH_ALONE, cwd=tmp_path, status=1)
    assert done.stdout.count('not installed') == 6
    assert 'landmark_attention cpu float32' in done.stdout
    steps = done.stderr.splitlines()
    assert steps[:2] == ['reading versions', 'asking the backends of each operator']
    assert steps[2:] == ['importing torchvision']
    assert done.stdout.endswith(
        'Problems: 1\n  `import torchvision` fails: RuntimeError: operator '
        'torchvision::nms does not exist\n    run: pip install --upgrade '
        '--force-reinstall torch torchvision\n'
    )
