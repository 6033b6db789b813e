"""The tool that writes small files of weights, and the names of the demos' files."""

import re
from pathlib import Path

import pytest
import torch

from mmattn.apis import find_model
from mmattn.weights.names import DEMOS, SCHEME
from mmattn.weights.read import read_checkpoint
from tools.converters import publish_model as tool

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A work dir with a checkpoint; returns its weights."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    kernel = torch.randn(6, 5, 3, 3)
    weights = dict(
        kernel=kernel,
        transposed=kernel[:, :, 0, 0].T,  # of the same storage, not contiguous
        norm=torch.tensor([1e-9, 1e9]),
        steps=torch.tensor(2**20 + 1),
    )
    Path('run').mkdir()
    Path('run/config.py').write_text("default_scope = 'mmdet'")
    state = dict(state_dict=weights, optimizer=dict(state={0: torch.ones(99)}))
    torch.save(state, 'run/iter_9.pth')
    return weights


@pytest.mark.parametrize('dtype, error', [('float16', 2**-11), ('bfloat16', 2**-8)])
def test_matrices_are_rounded_and_the_rest_is_kept(run, dtype, error):
    tool.main(['run', 'out/run.safetensors', '--dtype', dtype])
    written = read_checkpoint('out/run.safetensors')
    assert written.keys() == run.keys()
    for name in ('kernel', 'transposed'):
        assert str(written[name].dtype) == f'torch.{dtype}'
        torch.testing.assert_close(
            written[name].float(), run[name], rtol=error, atol=1e-7
        )
    for name in ('norm', 'steps'):
        assert torch.equal(written[name], run[name])
    assert [path.name for path in Path('out').iterdir()] == ['run.safetensors']


def test_weights_beyond_the_range(run):
    run['kernel'][0, 0, 0, 0] = 7e4
    torch.save(dict(state_dict=run), 'run/iter_10.pth')
    with pytest.raises(ValueError, match='kernel has weights up to 7e.04, .*bfloat16'):
        tool.main(['run', 'run.safetensors'])
    assert not Path('run.safetensors').exists()
    tool.main(['run/iter_10.pth', 'run.safetensors', '--dtype=bfloat16'])


def test_files_that_are_not_overwritten(run):
    with pytest.raises(ValueError, match='end in .safetensors, got run.pth'):
        tool.main(['run', 'run.pth'])
    Path('run.safetensors').write_text('before')
    with pytest.raises(ValueError, match='already exists; --force'):
        tool.main(['run', 'run.safetensors'])
    assert Path('run.safetensors').read_text() == 'before'
    tool.main(['run', 'run.safetensors', '--force'])
    assert read_checkpoint('run.safetensors').keys() == run.keys()


@pytest.mark.parametrize('name', DEMOS)
def test_demos_write_the_files_that_names_mean(run, name):
    command, file = DEMOS[name]
    rule = command.removeprefix('make ')
    makefile = (ROOT / 'Makefile').read_text().replace('\\\n', '')
    recipe = re.search(rf'^{rule}: .*\n((?:\t.*\n)+)', makefile, re.M)[1]
    config = re.search(r'train\.py (\S+)', recipe)[1]
    assert (ROOT / config).is_file() and Path(file).parent.name == Path(config).stem
    assert recipe.split('$(PUBLISH)')[1].split() == [str(Path(file).parent), file]

    with pytest.raises(FileNotFoundError, match=f'{name} is not .*`{command}`'):
        find_model(SCHEME + name)
    Path('work_dirs').mkdir()
    Path('run').rename(Path(file).parent)
    tool.main([str(Path(file).parent), file])
    found = find_model(SCHEME + name)
    assert found.weights == file and found.cfg.default_scope == 'mmdet'
    assert found.name == SCHEME + name
