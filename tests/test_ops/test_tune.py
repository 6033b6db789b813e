"""Tiles are chosen by time, kept by the name of the device and found again."""

import pytest
import torch

from mmattn.errors import UserError
from mmattn.ops import masked_attention
from mmattn.ops.common.operator import OPERATORS
from mmattn.ops.triton import launch
from tools.benchmark.inputs import make_masked_inputs

pytest.importorskip('triton')

from triton.runtime.errors import OutOfResources

from mmattn.ops.triton import tune

NAME, KEY, FIRST = 'masked_attention.TEST', ('sm', 3), (32, 16, 4)


@pytest.fixture
def table(monkeypatch, tmp_path):
    """Return a table of tiles, beside no others; nothing is kept yet."""
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda: 'NVIDIA H100/80')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(launch, 'TILE_TABLES', {})
    monkeypatch.setattr(tune, 'TILE_TABLES', launch.TILE_TABLES)
    launch.tiles_of_device.cache_clear()
    yield launch.TileTable(NAME, {KEY: FIRST, 'other': (8, 1)})
    launch.tiles_of_device.cache_clear()


@pytest.fixture
def step(table, monkeypatch):
    """Return a call whose kernel looks up tiles, some of which do not work."""
    kernels = OPERATORS['masked_attention'].backends['torch']
    forward = kernels.forward

    def with_tiles(*tensors, **settings):
        rows, columns, warps = table[KEY]
        if rows == 128:
            raise OutOfResources(300_000, 232_448, 'shared memory')
        out, *statistics = forward(*tensors, **settings)
        return out * (1 + (warps == 8)), *statistics

    monkeypatch.setattr(kernels, 'forward', with_tiles)
    q, k, v, *_ = make_masked_inputs()

    def call():
        settings = dict(grid=(7, 5), kernel_size=3, num_special=1, backend='torch')
        return masked_attention(q, k, v, **settings)

    return call


def seconds_of(table, times: dict):
    """Return what times a call by the tiles that it looks up, 10 s by default."""

    def seconds(call) -> float:
        call()
        return times.get(table[KEY], 10.0)

    return seconds


def test_the_fastest_tiles_that_are_right_are_kept_and_found_again(table, step):
    times = {
        FIRST: 8.0, (64, 16, 4): 7.9, (16, 16, 4): 6.0, (32, 32, 4): 5.0,
        (32, 16, 8): 1.0,  # with a wrong result
    }  # fmt: skip
    (choice,) = tune.tune(step, seconds_of(table, times))
    assert choice == (table, KEY, FIRST, (32, 32, 4), 1.6)
    assert table[KEY] == (32, 32, 4)
    tune.keep([choice], 'NVIDIA H100/80')
    launch.tiles_of_device.cache_clear()
    found = launch.TileTable(NAME, {KEY: FIRST, 'other': (8, 1)})
    assert found[KEY] == (32, 32, 4) and found['other'] == (8, 1)
    with found.trial(KEY, FIRST):
        assert found[KEY] == FIRST
    tune.keep([choice._replace(key='other', sizes=(4, 1))], 'NVIDIA H100/80')
    assert launch.read_tiles('NVIDIA H100/80') == {
        NAME: {str(KEY): [32, 32, 4], 'other': [4, 1]}
    }
    assert launch.read_tiles('NVIDIA A100') == {}


def test_tiles_that_do_not_fit_are_not_taken(table, step):
    table[KEY] = (64, 16, 4)
    times = {(64, 16, 4): 5.0, (128, 16, 4): 1.0}
    assert not [*tune.tune(step, seconds_of(table, times))]
    assert table[KEY] == (64, 16, 4)


@pytest.mark.parametrize(
    'text', ['{"a": ', '[1]', '{"a": 3}', '{"a": {"b": [32, "16"]}}', '{"a": {"b": 1}}']
)
def test_a_damaged_file_is_named(table, text):
    path = launch.tiles_path('NVIDIA H100/80')
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match=f'{path.name} is damaged: .*; remove it'):
        table[KEY]
