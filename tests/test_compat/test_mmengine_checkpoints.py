"""mmengine reads through our reader, whatever the address and whoever comes first."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from mmengine.fileio import LocalBackend, register_backend
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoint

from mmattn.compat import mmengine_checkpoints
from mmattn.engine import UntrustedCheckpointError, trusted_checkpoints
from mmattn.weights import names as published


class MakesFolder:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def served(serve, tmp_path, monkeypatch):
    """A folder with a trap and weights, its address, and the requests that it got."""
    folder = tmp_path / 'served'
    folder.mkdir()
    weights = {'backbone.w': torch.ones(2)}
    torch.save(dict(state_dict=weights), folder / 'fine.pth')
    sprung = tmp_path / 'sprung'
    trap = dict(state_dict=weights, run=MakesFolder(str(sprung)))
    torch.save(trap, folder / 'trap.pth')
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'mm_home'))
    return folder, *serve(folder), sprung


@pytest.fixture
def address(served, tmp_path, monkeypatch):
    """Makes each scheme lead to the trap; its addresses by scheme."""
    folder, url, _, _ = served
    name = 'trap.pth'
    models = {'model': f'{url}/{name}'}
    monkeypatch.setattr(mmengine_checkpoint, 'get_torchvision_models', lambda: models)
    monkeypatch.setattr(mmengine_checkpoint, 'get_mmcls_models', lambda: models)
    home = tmp_path / 'mm_home'
    home.mkdir()
    (home / 'open_mmlab.json').write_text(
        json.dumps(dict(models, local=str(folder / name)))
    )

    class Store(LocalBackend):
        def get(self, path):
            return (folder / name).read_bytes()

    register_backend('petrel', Store, force=True, prefixes=['petrel', 's3'])
    yield {
        'local': str(folder / name),
        'http': models['model'],
        'torchvision': 'torchvision://model',
        'modelzoo': 'modelzoo://model',
        'openmmlab': 'openmmlab://model',
        'open-mmlab-file': 'open-mmlab://local',
        'mmcls': 'mmcls://model',
        's3': 's3://bucket/name',
    }
    from mmengine.fileio.backends import PetrelBackend

    register_backend('petrel', PetrelBackend, force=True, prefixes=['petrel', 's3'])


def test_every_scheme_reads_safely(address, served):
    *_, sprung = served
    for scheme, name in address.items():
        with pytest.raises(UntrustedCheckpointError, match='mkdir'):
            CheckpointLoader.load_checkpoint(name)
        assert not sprung.exists(), scheme
        with trusted_checkpoints():
            read = CheckpointLoader.load_checkpoint(name)
        sprung.rmdir()
        key = 'w' if scheme == 'mmcls' else 'backbone.w'
        assert read['state_dict'][key].tolist() == [1, 1]


def test_no_scheme_is_left_to_mmengine():
    """One that mmengine adds has to be looked at; these two call load_from_http."""
    kept = {
        loader.__name__
        for loader in CheckpointLoader._schemes.values()
        if loader.__module__ != mmengine_checkpoints.__name__
    }
    assert kept == {'load_from_torchvision', 'load_from_mmcls'}


def kept(tmp_path, address):
    """The path of the copy of what is at an address, as the documentation has it."""
    folder = sha256(address.encode()).hexdigest()[:16]
    return tmp_path / 'torch_home/hub/checkpoints' / folder / Path(address).name


def test_a_published_name_is_downloaded_and_proved(served, tmp_path, monkeypatch):
    folder, url, requests, _ = served
    digest = sha256((folder / 'fine.pth').read_bytes()).hexdigest()
    files = {
        'net': dict(url=f'{url}/fine.pth', sha256=digest[:8]),
        'other': dict(url=f'{url}/fine.pth', sha256='deadbeef'),
        'gone': dict(url=f'{url}/gone.pth'),
    }
    monkeypatch.setattr(published, 'published_files', lambda: files)
    for _ in range(2):
        assert 'state_dict' in CheckpointLoader.load_checkpoint('mmattn://net')
    assert requests == ['/fine.pth']
    for name, error, message in (
        ('other', ValueError, f'fine.pth has the SHA-256 {digest}, expected deadbeef'),
        ('gone', OSError, f'404.*Put the file at {kept(tmp_path, f"{url}/gone.pth")}'),
        ('nets', ValueError, r"no weights 'nets': did you mean one of \['net'\]"),
    ):
        with pytest.raises(error, match=message):
            CheckpointLoader.load_checkpoint(f'mmattn://{name}')


def test_files_of_one_name_are_told_apart(served):
    folder, url, requests, _ = served
    for model in 'ab':
        (folder / model).mkdir()
        torch.save({'state_dict': {}, model: 1}, folder / model / 'w.pth')
    for _ in range(2):
        for model in 'ab':
            assert model in CheckpointLoader.load_checkpoint(f'{url}/{model}/w.pth')
    assert requests == ['/a/w.pth', '/b/w.pth']
    assert 'a' in CheckpointLoader.load_checkpoint(f'{url}/a/w.pth?version=2')
    assert len(requests) == 3


@pytest.mark.parametrize('digits', ['right', 'wrong', 'none'])
def test_downloads_of_torch_hub_are_used_if_their_name_proves_them(
    served, tmp_path, digits
):
    folder, url, requests, _ = served
    content = (folder / 'fine.pth').read_bytes()
    named = {'right': f'-{sha256(content).hexdigest()[:8]}', 'wrong': '-deadbeef'}
    name = f'model{named.get(digits, "")}.pth'
    (folder / name).write_bytes(content)
    there = tmp_path / 'torch_home/hub/checkpoints' / name
    there.parent.mkdir(parents=True)
    there.write_bytes(content)
    if digits == 'wrong':
        with pytest.raises(ValueError, match='expected deadbeef; it was discarded'):
            CheckpointLoader.load_checkpoint(f'{url}/{name}')
    else:
        CheckpointLoader.load_checkpoint(f'{url}/{name}')
    assert requests == ([] if digits == 'right' else [f'/{name}'])


def test_other_processes_wait_for_the_first_to_download(served, tmp_path, monkeypatch):
    folder, url, requests, _ = served
    copy = kept(tmp_path, f'{url}/fine.pth')
    waited = []

    def barrier():
        waited.append(requests.copy())
        copy.parent.mkdir(parents=True)
        copy.write_bytes((folder / 'fine.pth').read_bytes())

    state = dict(is_initialized=lambda: True, get_rank=lambda: 1, barrier=barrier)
    for name, value in state.items():
        monkeypatch.setattr(torch.distributed, name, value)
    CheckpointLoader.load_checkpoint(f'{url}/fine.pth')
    assert waited == [[]] and not requests


@pytest.mark.parametrize(
    ('content', 'fault'),
    [
        (b'', 'is empty'),
        (b'\n<!DOCTYPE html><p>Sign in', 'is a web page'),
        (b'{"error": "no such file"}', 'is no checkpoint'),
        (b'PK\3\4 of which the end is missing', 'is no checkpoint, or cut off'),
    ],
)
def test_what_is_no_checkpoint_is_not_kept(served, tmp_path, content, fault):
    folder, url, _, _ = served
    (folder / 'wrong.pth').write_bytes(content)
    with pytest.raises(ValueError, match=f'{url}/wrong.pth {fault}.*was discarded'):
        CheckpointLoader.load_checkpoint(f'{url}/wrong.pth')
    copy = kept(tmp_path, f'{url}/wrong.pth')
    assert not [*copy.parent.iterdir()]
    copy.write_bytes(content)  # as earlier versions kept it
    with pytest.raises(ValueError, match=f'{copy} {fault}.*remove the file'):
        CheckpointLoader.load_checkpoint(f'{url}/wrong.pth')
    (folder / 'wrong.safetensors').write_bytes(content)
    with pytest.raises(ValueError, match='wrong.safetensors is'):
        CheckpointLoader.load_checkpoint(f'{url}/wrong.safetensors')


@pytest.mark.parametrize(
    ('filename', 'error', 'message'),
    [
        ('gone.pth', FileNotFoundError, 'no checkpoint at gone.pth'),
        ('openmmlab://gone', ValueError, "no model 'gone'"),
        ('http://localhost/', ValueError, 'address of a file, got http://localhost/'),
    ],
)
def test_what_is_not_there_is_named(filename, error, message):
    with pytest.raises(error, match=message):
        CheckpointLoader.load_checkpoint(filename)


def test_pretrained_is_ours_for_every_module():
    loader = WEIGHT_INITIALIZERS.get('Pretrained')
    assert loader.__module__ == mmengine_checkpoints.__name__
