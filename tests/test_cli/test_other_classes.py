"""--pretrained with a model of another number of classes keeps all but its last layers.

Detector with boxes and masks, segmentor and classifier, as the tool trains them.
"""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from safetensors.torch import save_file

from mmattn.cli import train
from mmattn.engine.last_layers import last_layers
from mmattn.engine.start import use_pretrained
from mmattn.errors import UserError

# PyTorch 2.10 reads numbers although they go to the meta device.
SKIPS_NUMBERS = torch.__version__ >= (2, 14)
LAST = {
    'detector': {
        f'roi_head.{layer}.{kind}'
        for layer in ('bbox_head.fc_cls', 'bbox_head.fc_reg', 'mask_head.conv_logits')
        for kind in ('weight', 'bias')
    },
    'segmentor': {'decode_head.conv_seg.weight', 'decode_head.conv_seg.bias'},
    'classifier': {'head.fc.weight', 'head.fc.bias'},
}
NUMBER = {
    'detector': 'model.roi_head.{}.num_classes',
    'segmentor': 'model.decode_head.num_classes',
    'classifier': 'model.head.num_classes',
}


@pytest.fixture
def other(work, monkeypatch):
    """Write weights of a config with seven classes; return their file."""

    def make(task: str):
        monkeypatch.chdir(work)
        cfg = Config.fromfile(f'{task}.py')
        heads = ('bbox_head', 'mask_head') if task == 'detector' else ('',)
        cfg.merge_from_dict({NUMBER[task].format(head): 7 for head in heads})
        init_default_scope(cfg.default_scope)
        torch.manual_seed(0)
        weights = MODELS.build(cfg.model).state_dict()
        path = work / f'{task}.pth'
        torch.save(dict(state_dict=weights, meta={}), path)
        return path, weights

    return make


@pytest.mark.parametrize(
    'task',
    ['detector', 'classifier', pytest.param('segmentor', marks=pytest.mark.slow)],
)
def test_everything_but_the_last_layers_is_kept(work, tool, other, capsys, task):
    path, weights = other(task)
    runners = []

    def only_load(cfg):
        runner = build(cfg)
        runner.train = runner.load_or_resume
        runners.append(runner)
        return runner

    build, patched = train.build_runner, dict(build_runner=only_load)
    tool('train', f'{task}.py', '--pretrained', path, patched=patched)
    (runner,) = runners
    assert last_layers(runner.cfg) == LAST[task]
    loaded = runner.model.state_dict()
    for name, value in weights.items():
        same = loaded[name].shape == value.shape and torch.equal(loaded[name], value)
        assert same == (name not in LAST[task]) or 'data_preprocessor' in name
    said = ''.join(capsys.readouterr())
    assert f'the model starts from {path}, without the last layers if' in said
    assert f'kept {len(weights) - len(LAST[task])} of' in said
    assert all(f'{name} (' in said for name in LAST[task])
    assert 'WARNING - the' not in said


@pytest.mark.parametrize('name', ['same.pth', 'same.safetensors'])
def test_the_same_classes_keep_everything(work, monkeypatch, name):
    """The choice reads names; the numbers are read once, by the run."""
    monkeypatch.chdir(work)
    cfg = Config.fromfile('segmentor.py')
    init_default_scope('mmseg')
    weights = MODELS.build(cfg.model).state_dict()
    if name.endswith('.pth'):
        torch.save(dict(state_dict=weights), name)
    else:
        save_file(weights, name)
    before = bytes_read()
    use_pretrained(cfg, name)
    if name.endswith('.safetensors') or SKIPS_NUMBERS:
        assert bytes_read() - before < Path(name).stat().st_size / 4
    assert cfg.load_from == name and cfg.fine_tune
    assert not cfg.model.backbone.get('init_cfg')


def bytes_read() -> int:
    """Return what this process has asked the system to read."""
    return int(re.search(r'rchar: (\d+)', Path('/proc/self/io').read_text())[1])


def test_a_model_of_another_kind_gives_its_backbone(work, other):
    path, _ = other('detector')
    cfg = Config.fromfile('segmentor.py')
    use_pretrained(cfg, str(path))
    assert cfg.load_from is None and not cfg.fine_tune
    assert cfg.model.backbone.init_cfg.checkpoint == str(path)


def test_other_differences_stay_errors(work, tool, other):
    path, weights = other('segmentor')
    key = 'decode_head.fpn_bottleneck.conv.weight'
    weights[key] = weights[key][:8]
    torch.save(dict(state_dict=weights), path)
    with pytest.raises(UserError, match=f'besides the last layers.*: {key}'):
        tool('train', 'segmentor.py', '--pretrained', path)
