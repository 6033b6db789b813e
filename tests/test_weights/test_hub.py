"""Weights named `timm://` and `hf://`, from an imitated cache of the hub."""

from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from mmengine.runner import CheckpointLoader
from refusals import refuses
from safetensors.torch import save_file
from torch.testing import assert_close

from mmattn.models import PVTv2, create_model
from mmattn.weights.resolve import local_checkpoint, place_in_cache

REVISION = '0' * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return a function that puts a file into the cache; the network is off."""
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)

    def put(repository, file, write, revision=REVISION, branch='main'):
        folder = tmp_path / f'models--{repository.replace("/", "--")}'
        path = folder / 'snapshots' / revision / file
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        (folder / 'refs').mkdir(exist_ok=True)
        (folder / 'refs' / branch).write_text(revision)
        return path

    return put


def safetensors(weights):
    return lambda path: save_file(weights, path)


def pretrained(cls, checkpoint, *args, **kwargs):
    init_cfg = dict(type='Pretrained', checkpoint=checkpoint)
    model = cls(*args, init_cfg=init_cfg, **kwargs).eval()
    model.init_weights()
    return model


def read(name):
    return CheckpointLoader.load_checkpoint(name)


def test_timms_weights_give_timms_maps(cache):
    torch.manual_seed(0)
    source = timm.create_model('pvt_v2_b0', features_only=False).eval()
    weights = safetensors(source.state_dict())
    cache('timm/pvt_v2_b0.in1k', 'model.safetensors', weights)
    x = torch.randn(1, 3, 64, 64)
    _, expected = source.forward_intermediates(x)
    model = pretrained(PVTv2, 'timm://pvt_v2_b0.in1k', 'b0')
    assert_close(list(model(x)), expected, rtol=1e-4, atol=1e-5)
    also = create_model('pvt_v2_b0', checkpoint='timm://pvt_v2_b0')
    assert_close(also.state_dict(), model.state_dict())


test_unknown_names_say_what_is_known = refuses(
    read,
    ('timm://pvt_v2_b9.in1k', "weights 'pvt_v2_b9.in1k': did you mean .*pvt_v2_"),
    ('timm://pvt_v2_b0.in21k', r"did you mean one of \['pvt_v2_b0.in1k'\]"),
    ('hf://model.safetensors', r'named hf://<owner>/<repository>\[@'),
    ('hf:///repository/file', 'named hf://<owner>'),
)


def test_a_file_of_the_hub_is_named(cache):
    one, two = {'w': torch.ones(1)}, {'w': torch.zeros(2)}
    cache('org/net', 'sub/net.safetensors', safetensors(one))
    cache('org/net', 'sub/net.safetensors', safetensors(two), '1' * 40, 'v2')
    assert_close(read('hf://org/net/sub/net.safetensors'), one)
    assert_close(read('hf://org/net@v2/sub/net.safetensors'), two)


def test_a_repository_alone_means_its_model(cache):
    weights = {'w': torch.ones(1)}
    cache('org/old', 'pytorch_model.bin', lambda path: torch.save(weights, path))
    assert_close(read('hf://org/old'), weights)
    cache('org/old', 'model.safetensors', safetensors({'w': torch.zeros(1)}))
    assert_close(read('hf://org/old'), {'w': torch.zeros(1)})


def test_a_name_has_a_local_copy(cache):
    path = cache('org/net', 'net.safetensors', safetensors({'w': torch.ones(1)}))
    for name in ('hf://org/net/net.safetensors', 'hf://org/other'):
        place, kept = place_in_cache(name)
        assert kept == (name == 'hf://org/net/net.safetensors')
        assert place == (path if kept else path.parents[3] / 'models--org--other')
    assert local_checkpoint('hf://org/net/net.safetensors') == path
    assert local_checkpoint(str(path)) == local_checkpoint(Path(path)) == path
    message = 'one of hf://, http://, https://, mmattn://, timm://; got s3://net.pth'
    with pytest.raises(ValueError, match=message):
        local_checkpoint('s3://net.pth')


def test_a_file_that_is_nowhere_is_named(cache):
    message = 'hf://org/none is neither in reach nor in the cache. model.safetensors: '
    with pytest.raises(ConnectionError, match=message):
        read('hf://org/none')
