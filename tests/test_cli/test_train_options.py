"""Options of tools/train.py and tools/test.py, in the config that they would run."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmattn.cli import tune
from mmattn.engine.start import ZOOS, Start, fetch_start
from mmattn.errors import UserError


class Built(Exception):
    pass


@pytest.fixture
def amended(tool):
    """The config that a tool would run."""

    def built(cfg):
        raise Built(cfg)

    def amend(name: str, *args) -> Config:
        with pytest.raises(Built) as caught:
            tool(name, *args, patched={'build_runner': built})
        return caught.value.args[0]

    return amend


@pytest.fixture
def checkpoint(work):
    torch.save(dict(weight=torch.zeros(1)), work / 'any.pth')
    return 'any.pth'


@pytest.mark.parametrize(
    'args, expected',
    [
        (['--amp'], {'loss_scale': 'dynamic'}),
        (['--amp-dtype', 'float16'], {'loss_scale': 'dynamic', 'dtype': 'float16'}),
        (
            ['--amp', '--cfg-options', 'optim_wrapper.type=AmpOptimWrapper']
            + ['optim_wrapper.loss_scale=512.0', 'optim_wrapper.dtype=bfloat16'],
            {'loss_scale': 512.0, 'dtype': 'bfloat16'},
        ),
    ],
    ids=['default', 'dtype', 'already'],
)
def test_amp_keeps_what_the_config_says(amended, args, expected):
    plain = amended('train', 'segmentor.py').optim_wrapper
    wrapper = amended('train', 'segmentor.py', *args).optim_wrapper
    assert wrapper == plain | expected | {'type': 'mmattn.AmpOptimWrapper'}
    assert wrapper.clip_grad.max_norm == 5.0


@pytest.mark.parametrize('task', ['detector', 'classifier', 'segmentor'])
def test_options_of_training(amended, task):
    cfg = amended('train', f'{task}.py')
    assert cfg.work_dir == f'work_dirs/{task}'
    assert cfg.val_cfg and not cfg.resume and not cfg.auto_scale_lr.enable
    assert 'trust_checkpoint' not in cfg and 'allow_partial_load' not in cfg

    flags = ['--no-validate', '--auto-scale-lr', '--trust-checkpoint']
    options = ['--allow-partial-load', '--resume', 'any.pth', '--work-dir', 'elsewhere']
    cfg = amended('train', f'{task}.py', *flags, *options)
    assert cfg.val_cfg is cfg.val_dataloader is cfg.val_evaluator is None
    assert cfg.auto_scale_lr.enable and cfg.work_dir == 'elsewhere'
    assert cfg.trust_checkpoint and cfg.allow_partial_load
    assert cfg.resume and cfg.load_from == 'any.pth'


NO_CLASSIFIER = (
    'random weights, but .* no work_dirs/ivit_t_300e_in1k/epoch_300.pth. Train the '
    r'classifier \(mmattn train classification/ivit_t_300e_in1k.py\), name other '
    r'weights \(--pretrained NAME\|FILE\), .*--pretrained none\)'
)
PVT_V2 = r'pvt_v2_b2, https://github.*/pvt_v2_b2.pth, to be kept at .*b2.pth'
TIMM = r'timm://pvt_v2_b2.in1k, to be kept at .*models--timm--pvt_v2_b2.in1k'
START = 'model.backbone.init_cfg.checkpoint'
LOAD = '--cfg-options load_from=any.pth'
STARTS = [  # arguments, what is said, and the checkpoint of the backbone
    ('detector.py', NO_CLASSIFIER, None),
    ('detector.py --pretrained none', 'random weights', None),
    ('detector.py --pretrained pvt_v2_b2', PVT_V2, 'pvt_v2_b2'),
    ('detector.py --pretrained timm://pvt_v2_b2.in1k', TIMM, 'timm://pvt_v2_b2.in1k'),
    ('detector.py --pretrained any.pth', 'any.pth', 'any.pth'),
    (f'detector.py --cfg-options {START}=any.pth', 'any.pth', 'any.pth'),
    ('detector.py --resume any.pth --pretrained any.pth', None, None),
    (f'detector.py {LOAD}', None, None),
    (f'detector.py {LOAD} --pretrained none', 'random weights', None),
    ('detector.py --work-dir resumed --resume', None, None),
    ('detector.py --work-dir fresh --resume', NO_CLASSIFIER, None),
    ('segmentor.py', 'random weights', None),
]


@pytest.mark.parametrize(
    'options, dtype',
    [('', 'float32'), ('--amp', 'float16'), ('--amp-dtype bfloat16', 'bfloat16')],
)
def test_tiles_are_chosen_before_the_first_step(amended, monkeypatch, options, dtype):
    calls = []
    monkeypatch.setattr(tune, 'tune_backbone', lambda cfg, *args: calls.append(args))
    amended('train', 'detector.py', *options.split())
    assert not calls
    monkeypatch.setenv('MMATTN_TUNE', '1')
    cfg = amended('train', 'detector.py', *options.split())
    assert calls == [(cfg.train_dataloader.batch_size, dtype)]


def test_the_variable_of_tiles_is_0_or_1(tool, monkeypatch):
    monkeypatch.setenv('MMATTN_TUNE', 'yes')
    with pytest.raises(UserError, match="MMATTN_TUNE must be 0 or 1, got 'yes'"):
        tool('train', 'detector.py', patched={'build_runner': None})


def test_tiles_by_time_require_a_gpu(tool, monkeypatch):
    monkeypatch.setenv('MMATTN_TUNE', '1')
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(UserError, match='by time requires a GPU, and PyTorch'):
        tool('train', 'detector.py', patched={'build_runner': None})


@pytest.mark.parametrize('args, message, checkpoint_of', STARTS)
def test_a_run_says_what_it_starts_from(
    tool, amended, checkpoint, capsys, monkeypatch, args, message, checkpoint_of
):
    monkeypatch.setenv('TORCH_HOME', 'empty')
    Path('resumed').mkdir(exist_ok=True)
    Path('resumed/last_checkpoint').write_text('epoch_1.pth')
    args = args.split()
    tool('train', *args, '--dry-run', patched={'build_runner': None})
    expected = f'the backbone starts from {message}'
    if message is None:
        expected = 'the model starts from .*(any.pth|checkpoint in resumed)'
    assert re.fullmatch(expected, capsys.readouterr().out.strip())
    init_cfg = amended('train', *args).model.backbone.get('init_cfg')
    assert (init_cfg or {}).get('checkpoint') == checkpoint_of


def test_weights_out_of_reach_end_a_run_before_it_reads_data(tool, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', 'empty')
    data = '--cfg-options', 'train_dataloader.dataset.data_root=nowhere'
    url = 'http://127.0.0.1:9/net.pth'
    message = f'{url} cannot be .* Put the file at empty/.*net.pth, .*--pretrained none'
    with pytest.raises(ValueError, match=message):
        tool('train', 'detector.py', '--pretrained', url, *data)


@pytest.mark.parametrize('scheme', ['', 'torchvision://'])
def test_weights_are_downloaded_first_and_read_later(
    serve, tmp_path, monkeypatch, scheme
):
    torch.save(nn.Linear(1, 1), tmp_path / 'net.pth')  # code: refused by who reads it
    address, requests = serve(tmp_path)
    address += '/net.pth'
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'cache'))
    monkeypatch.setitem(ZOOS, 'torchvision', lambda: {'net': address})
    fetch_start(Start('', 'torchvision://net' if scheme else address))
    assert requests == ['/net.pth'] and [*tmp_path.glob('cache/**/net.pth')]


BARE = """
default_scope = 'mmpretrain'
model = dict()
train_dataloader = dict(num_workers=2)
test_dataloader = dict(num_workers=0, pin_memory=False)
test_cfg = dict()
"""


@pytest.mark.parametrize('name', ['train', 'test'])
def test_dataloaders_get_mmpretrains_defaults_and_the_options(
    amended, checkpoint, name
):
    Path('bare.py').write_text(BARE)
    files = ['bare.py'] if name == 'train' else ['bare.py', checkpoint]
    cfg = amended(name, *files)
    collate = dict(collate_fn=dict(type='default_collate'))
    kept, left = (dict(pin_memory=b, persistent_workers=b) for b in (True, False))
    assert cfg.train_dataloader == dict(collate, num_workers=2, **kept)
    assert cfg.test_dataloader == dict(collate, num_workers=0, **left)

    cfg = amended(name, *files, '--no-pin-memory', '--no-persistent-workers')
    assert not cfg.train_dataloader.pin_memory
    assert not cfg.train_dataloader.persistent_workers

    files[0] = 'detector.py'
    assert 'pin_memory' not in amended(name, *files).train_dataloader
    cfg = amended(name, *files, '--no-pin-memory')
    assert cfg.test_dataloader.pin_memory is False


@pytest.mark.parametrize('task', ['detector', 'classifier'])
def test_the_default_augmentation_is_a_flip(amended, checkpoint, task):
    plain = amended('test', f'{task}.py', checkpoint)
    cfg = amended('test', f'{task}.py', checkpoint, '--tta')
    assert cfg.model.module == plain.model
    *steps, flip = cfg.test_dataloader.dataset.pipeline
    assert steps == plain.test_dataloader.dataset.pipeline[:-1]
    flips, [pack] = flip.transforms
    assert [step.prob for step in flips] == [1.0, 0.0]
    assert pack.type == plain.test_dataloader.dataset.pipeline[-1].type


FLEXIBLE = '--cfg-options runner_type=FlexibleRunner --trust-checkpoint'
WRONG = {  # by the command: what is said
    'test detector.py missing.pth': 'no checkpoint at missing.pth',
    'test detector.py any.pth --out a.json': 'must end in .pkl',
    'test segmentor.py any.pth --out a.json': 'must end in .pkl',
    'test detector.py any.pth --out-item pred': 'needs --out',
    'test detector.py any.pth --out a.pkl.gz --out-item metrics': 'must end in one of',
    'test detector.py any.pth --interval 0': 'must be a positive integer',
    'test segmentor.py any.pth --show-dir a --interval 2': 'mmseg draws every image',
    'test detector.py any.pth --cfg-options model.roi_head.mask_head=None --tta': (
        'MaskRCNN is evaluated by its masks'
    ),
    'test classifier.py any.pth --tta --show-dir a': 'cannot draw augmented',
    f'test detector.py any.pth {FLEXIBLE}': 'requires mmattn.Runner',
    f'train detector.py {FLEXIBLE}': 'requires mmattn.Runner',
    'train detector.py --cfg-options optim_wrapper.type=ApexOptimWrapper --amp': (
        "is 'ApexOptimWrapper'"
    ),
    'train detector.py --auto-scale-lr --cfg-options auto_scale_lr=None': (
        'requires auto_scale_lr.base_batch_size'
    ),
    'train detector.py --pretrained gone': (
        'no checkpoint at gone, and no weights have this name'
    ),
    f'train detector.py --cfg-options {START}=work_dirs/mine/epoch_1.pth': (
        'is work_dirs/mine/epoch_1.pth: there is no checkpoint at'
    ),
}


@pytest.mark.parametrize('command', WRONG)
def test_what_cannot_be_done_is_said_first(tool, checkpoint, capsys, command):
    with pytest.raises((SystemExit, ValueError)) as caught:
        tool(*command.split(), patched={'build_runner': None})
    assert WRONG[command] in str(caught.value) + capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason='float16 can be read')
def test_detection_has_no_amp_on_a_cpu(tool, checkpoint):
    with pytest.raises(ValueError, match='bfloat16'):
        tool('test', 'detector.py', checkpoint, '--amp')


@pytest.mark.parametrize('name', ['train', 'test'])
def test_a_part_of_a_config_is_refused(tool, checkpoint, name):
    config = Path('part.py')
    config.write_text("default_scope = 'mmseg'\nmodel = dict()")
    files = [config] if name == 'train' else [config, checkpoint]
    with pytest.raises(ValueError, match=f'part.py has no {name}_dataloader: pass a'):
        tool(name, *files)
