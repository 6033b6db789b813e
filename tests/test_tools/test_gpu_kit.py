"""The kit for machines without a network: what it packs and unpacks."""

import subprocess
import sys
import zipfile
from importlib import metadata
from types import SimpleNamespace

import pytest

from tools.dev import gpu_kit


@pytest.fixture
def checkout(monkeypatch):
    """Pack one file instead of the repository."""

    def pack(folder):
        (folder / 'tools/dev').mkdir(parents=True)
        (folder / 'tools/benchmark').mkdir(parents=True)
        (folder / 'tools/dev/gpu_kit.py').write_text(
            (gpu_kit.ROOT / 'tools/dev/gpu_kit.py').read_text()
        )
        (folder / 'tools/benchmark/gpu_report.py').write_text(
            'import sys, six\nprint(six.__file__, sys.argv[1:])\n'
        )

    monkeypatch.setattr(gpu_kit, 'pack_checkout', pack)


def make(tmp_path, monkeypatch, capsys, **values) -> str:
    for name, value in values.items():
        monkeypatch.setattr(gpu_kit, name, value)
    out = tmp_path / 'kit'
    assert gpu_kit.main(['--out', str(out)]) == 0
    return capsys.readouterr().out


def no_network(name, folder, python):
    return 'no network'


def test_kit_unpacks_what_is_missing_and_runs(tmp_path, monkeypatch, capsys, checkout):
    printed = make(
        tmp_path,
        monkeypatch,
        capsys,
        PURE=('six', 'no-such-package'),
        COMPILED=(),
        download=no_network,
    )
    assert 'left out: no-such-package: no network' in printed
    environment = tmp_path / 'env'
    subprocess.run(
        [sys.executable, '-m', 'venv', '--without-pip', environment], check=True
    )
    done = subprocess.run(
        ['sh', tmp_path / 'kit/run.sh', '--dry-run'],
        env={'PYTHON': str(environment / 'bin/python'), 'PATH': '/usr/bin:/bin'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f'{tmp_path}/kit/site/six.py' in done.stdout
    assert "'--dry-run']" in done.stdout


def test_installed_distributions_are_not_unpacked(
    tmp_path, monkeypatch, capsys, checkout
):
    make(tmp_path, monkeypatch, capsys, PURE=('six',), COMPILED=(), download=no_network)
    gpu_kit.main(['--unpack', str(tmp_path / 'kit')])
    assert not (tmp_path / 'kit/site').exists()


def test_wheels_beyond_the_limit_are_left_out(tmp_path, monkeypatch, capsys, checkout):
    printed = make(
        tmp_path, monkeypatch, capsys, PURE=('six',), COMPILED=(), LIMIT=1000
    )
    assert 'left out: six: it would make the kit larger' in printed
    assert not list((tmp_path / 'kit/wheels').iterdir())


def test_repacked_wheel_has_metadata_and_no_scripts(tmp_path):
    path = gpu_kit.repack('tqdm', tmp_path)
    assert path.name == f'tqdm-{metadata.version("tqdm")}-py3-none-any.whl'
    names = zipfile.ZipFile(path).namelist()
    assert 'tqdm/__init__.py' in names
    assert any(name.endswith('.dist-info/METADATA') for name in names)
    assert not any('..' in name or '__pycache__' in name for name in names)
    assert gpu_kit.repack('torch', tmp_path) is None


@pytest.mark.parametrize(
    'tags, expected',
    [
        ('py3-none-any', True),
        ('py2.py3-none-any', True),
        ('cp312-cp312-manylinux_2_28_x86_64', True),
        ('cp311-cp311-manylinux_2_28_x86_64', False),
        ('cp310-abi3-manylinux_2_28_x86_64', True),
        ('cp313-abi3-manylinux_2_28_x86_64', False),
    ],
)
def test_wheels_of_this_python(monkeypatch, tmp_path, tags, expected):
    monkeypatch.setattr(gpu_kit, 'sys', SimpleNamespace(version_info=(3, 12, 1)))
    assert gpu_kit.runs_here(tmp_path / f'any-1.0-{tags}.whl') == expected


def test_an_existing_folder_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu_kit.main(['--out', str(tmp_path)])
    assert 'exists' in capsys.readouterr().err
