"""The training tools on toy data: as commands, mmdet's own, and option by option."""

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

import cv2  # noqa: E402
import mmdet  # noqa: E402
from mmengine.config import Config  # noqa: E402

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / 'tools'
from installed import hook_in, make_environment  # noqa: E402

MMDET_TOOLS = Path(mmdet.__file__).parent / '.mim' / 'tools'
DETECTOR = """
_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'
model = dict(
    backbone=dict(arch='nano'),
    neck=dict(in_channels=[32, 64, 160, 256], out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=32),
        mask_roi_extractor=dict(out_channels=32),
        bbox_head=dict(in_channels=32, fc_out_channels=32),
        mask_head=dict(in_channels=32, conv_out_channels=32, num_convs=1)),
    train_cfg=dict(
        rpn_proposal=dict(max_per_img=50), rcnn=dict(sampler=dict(num=16))),
    test_cfg=dict(rpn=dict(max_per_img=20), rcnn=dict(score_thr=0.0, max_per_img=5)))
load = dict(type='LoadImageFromFile')
annotate = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
resize = dict(type='Resize', scale=(96, 96), keep_ratio=True)
pack = dict(type='PackDetInputs', meta_keys=(
    'img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
loader = dict(batch_size=1, num_workers=0, persistent_workers=False)
train_dataloader = dict(**loader, dataset=dict(pipeline=[load, annotate, resize, pack]))
val_dataloader = dict(**loader, dataset=dict(pipeline=[load, resize, annotate, pack]))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=1)
default_hooks = dict(logger=dict(interval=1))
"""
CLASSIFIER = """
_base_ = 'mmattn::classification/vit_t16_imhsa_300e_in1k.py'
loader = dict(batch_size=2, num_workers=0, persistent_workers=False)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_epochs=1)
default_hooks = dict(logger=dict(interval=1))
"""
SEGMENTOR = """
_base_ = 'mmattn::demo/upernet_ivit_n_landcover.py'
model = dict(decode_head=dict(num_classes=150, loss_decode=dict(class_weight=None)))
data = dict(
    type='ADE20KDataset', data_root='data/ade/ADEChallengeData2016', metainfo=None,
    reduce_zero_label=True)
loader = dict(batch_size=1, num_workers=0, persistent_workers=False, dataset=data)
train_dataloader = loader
val_dataloader = loader
test_dataloader = loader
train_cfg = dict(max_iters=2, val_interval=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2))
"""
STOCK_TOOL_BASES = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
custom_imports = dict(imports=['mmattn'])
"""
STOCK_TOOL_BACKBONE = "dict(_delete_=True, type='mmattn.IViT', arch='nano')"
CONFIGS = {
    'detector': DETECTOR,
    'classifier': CLASSIFIER,
    'segmentor': SEGMENTOR,
    'stock': STOCK_TOOL_BASES
    + DETECTOR.replace("_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'", '').replace(
        "dict(arch='nano')", STOCK_TOOL_BACKBONE
    ),
}


def run(script: Path, *args, cwd: Path, python=sys.executable, **environment) -> str:
    """What a command printed."""
    done = subprocess.run(
        [python, str(script), *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {'OMP_NUM_THREADS': '1'} | environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def load_tool(name: str):
    """A tool as a module; `test` alone is the name of one of Python's own."""
    path = TOOLS / f'{name}.py'
    spec = importlib.util.spec_from_file_location(f'tool_{path.stem}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with toy data and configs that train on them in seconds."""
    folder = tmp_path_factory.mktemp('work')
    toy = load_tool('datasets/toy')
    toy.make_coco(folder / 'data/coco')
    toy.make_imagenet(folder / 'data/imagenet')
    toy.make_ade20k(folder / 'data/ade')
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    return folder


@pytest.fixture(scope='module')
def trained(work):
    """The folder of a detector that our tool has trained for an epoch."""
    assert 'coco/bbox_mAP' in run(TOOLS / 'train.py', 'detector.py', cwd=work)
    run_dir = work / 'work_dirs' / 'detector'
    # Each run in the folder saves its config there, with --tta another model.
    shutil.copy(run_dir / 'detector.py', run_dir / 'as_trained.py')
    return run_dir


@pytest.fixture(scope='module')
def run_plainly(work):
    """Runs a script that does not import mmattn first, where mmattn is installed."""
    python, packages = make_environment(work / 'venv')
    hook_in(packages)
    return partial(run, cwd=work, python=python, PYTHONPATH='')


@pytest.fixture
def tool(work, monkeypatch, forget_instances):
    """Runs the `main` of a tool in the work folder, in this process."""
    monkeypatch.chdir(work)
    monkeypatch.setenv('LOCAL_RANK', '0')

    def call(name: str, *args, patched: dict | None = None):
        forget_instances()
        module = load_tool(name)
        vars(module).update(patched or {})
        monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
        monkeypatch.setattr(sys, 'path', sys.path[:])
        if name == 'analysis/draw_run':
            return module.main()
        return module.main([*map(str, args)])

    return call


@pytest.fixture
def amended(tool):
    """The config that a tool would run."""

    class Built(Exception):
        pass

    def built(cfg):
        raise Built(cfg)

    def amend(name: str, *args) -> Config:
        with pytest.raises(Built) as caught:
            tool(name, *args, patched={'build_runner': built})
        return caught.value.args[0]

    return amend


@pytest.fixture
def checkpoint(work):
    (work / 'any.pth').touch()
    return 'any.pth'


def log_of(run_dir: Path) -> str:
    return sorted(run_dir.glob('*/*.log'))[-1].read_text()


def test_a_detector_trains_resumes_is_tested_and_drawn(work, tool, trained):
    run_dir, checkpoint = trained, trained / 'epoch_1.pth'
    assert checkpoint.is_file()

    options = ('--resume', '--cfg-options', 'train_cfg.max_epochs=2')
    tool('train', 'detector.py', *options)
    assert 'resumed epoch: 1' in log_of(run_dir)
    assert (run_dir / 'epoch_2.pth').is_file()

    out = ('--out', 'predictions.pkl', '--show-dir', 'shown')
    tool('test', 'detector.py', checkpoint, *out)
    predictions = pickle.loads((work / 'predictions.pkl').read_bytes())
    assert len(predictions) == 4
    assert {'bboxes', 'scores', 'masks'} <= set(predictions[0]['pred_instances'])
    assert len(list(run_dir.rglob('shown/*'))) == 4

    out = ('--out', 'boxes.pkl', '--show-dir', 'shown_tta')
    with pytest.warns(UserWarning, match='--tta: boxes only'):
        tool('test', 'detector.py', checkpoint, '--tta', *out)
    log = log_of(run_dir)
    assert 'coco/bbox_mAP' in log and 'segm' not in log.split('Epoch(test)')[-1]
    boxes = pickle.loads((work / 'boxes.pkl').read_bytes())
    assert set(boxes[0]['pred_instances']) == {'bboxes', 'scores', 'labels'}
    assert len(list(run_dir.rglob('shown_tta/*'))) == 4

    tool('analysis/draw_run', 'detector.py', '--num-images', 2)
    for name in ('curves.png', 'predictions.png'):
        assert (run_dir / name).stat().st_size > 10_000
    summary = json.loads((run_dir / 'summary.json').read_text())
    assert set(summary['metrics']) == {'coco/bbox_mAP', 'coco/segm_mAP'}


def test_mmdets_own_tool_trains_with_our_backbone(work):
    stock = MMDET_TOOLS / 'train.py'
    assert 'coco/bbox_mAP' in run(stock, 'stock.py', cwd=work)


def test_mmdets_own_tool_tests_what_ours_has_trained(trained, run_plainly):
    files = trained / 'as_trained.py', trained / 'epoch_1.pth'
    printed = run_plainly(MMDET_TOOLS / 'test.py', *files)
    assert 'coco/segm_mAP' in printed and 'mmattn.Runner' in printed


INFERENCE = """
import sys
import torch
from mmdet.apis import DetInferencer
from mmengine.runner import CheckpointLoader
config, checkpoint, image = sys.argv[1:]
read = CheckpointLoader._get_checkpoint_loader(checkpoint).__module__
assert read == 'mmengine.runner.checkpoint' and 'mmattn' not in sys.modules
infer = DetInferencer(config, checkpoint, device='cpu', show_progress=False)
prediction = infer(image)['predictions'][0]
print(type(infer.model.backbone).__module__, len(prediction['scores']))
"""


@pytest.mark.slow
def test_mmdets_inferencer_runs_what_ours_has_trained(work, trained, run_plainly):
    script = work / 'infer.py'
    script.write_text(INFERENCE)
    image = next((work / 'data/coco').rglob('*.jpg'))
    files = trained / 'as_trained.py', trained / 'epoch_1.pth', image
    assert 'mmattn.models.backbones.ivit 5' in run_plainly(script, *files)


def test_a_classifier_trains_is_tested_and_drawn(work, tool):
    run_dir = work / 'work_dirs' / 'classifier'
    tool('train', 'classifier.py', '--amp', '--auto-scale-lr', '--no-validate')
    log = log_of(run_dir)
    assert 'Scaling the original LR by 0.001953125' in log  # 2 of 1024 images
    assert 'Epoch(train)' in log and 'accuracy/top1' not in log
    checkpoint = run_dir / 'epoch_1.pth'

    # A batch of 2, drawn: the first of each.
    out = ('--out', 'scores.pkl', '--show-dir', 'classes', '--interval', 2)
    tool('test', 'classifier.py', checkpoint, *out)
    assert len(list((work / 'classes').iterdir())) == 2
    tool('test', 'classifier.py', checkpoint, '--out', 'amp.pkl', '--amp')
    full, half = (
        [p['pred_score'] for p in pickle.loads((work / name).read_bytes())]
        for name in ('scores.pkl', 'amp.pkl')
    )
    assert len(full) == len(half) == 4
    assert not torch.equal(full[0], half[0].float())
    torch.testing.assert_close(full[0], half[0].float(), rtol=0.1, atol=1e-4)

    out = ('--out', 'metrics.json', '--out-item', 'metrics')
    tool('test', 'classifier.py', checkpoint, '--tta', *out)
    metrics = json.loads((work / 'metrics.json').read_text())
    assert set(metrics) == {'accuracy/top1', 'accuracy/top5'}


def test_a_segmentor_trains_is_tested_and_drawn(work, tool):
    run_dir = work / 'work_dirs' / 'segmentor'
    tool('train', 'segmentor.py', '--amp-dtype', 'bfloat16')
    assert 'mIoU' in log_of(run_dir)
    checkpoint = run_dir / 'iter_2.pth'

    out = ('--out', 'labels', '--show-dir', 'maps')
    tool('test', 'segmentor.py', checkpoint, '--tta', '--amp', *out)
    assert len(list((work / 'maps/vis_data/vis_image').iterdir())) == 4
    names = {path.name for path in (work / 'labels').iterdir()}
    assert names == {f'ADE_val_{i:08d}.png' for i in range(1, 5)}
    label = cv2.imread('labels/ADE_val_00000001.png', cv2.IMREAD_UNCHANGED)
    image = cv2.imread('data/ade/ADEChallengeData2016/images/validation/'
                       'ADE_val_00000001.jpg')  # fmt: skip
    assert label.shape == image.shape[:2] and label.max() <= 150

    tool('test', 'segmentor.py', checkpoint, '--out', 'labels.pkl')
    predictions = pickle.loads((work / 'labels.pkl').read_bytes())
    alone = predictions[0]['pred_sem_seg']['data'].squeeze().numpy() + 1
    assert alone.shape == label.shape
    assert not np.array_equal(alone, label)  # six augmented views say something else

    log = sorted(run_dir.glob('*/vis_data/scalars.json'))[0]
    curves = ('plot_curve', log, '--keys', 'loss', 'mIoU', '--out', 'curves.png')
    tool('analysis/analyze_logs', *curves)
    assert cv2.imread('curves.png').std() > 1


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


@pytest.mark.parametrize('name', ['train', 'test'])
def test_dataloaders_get_mmpretrains_defaults_and_the_options(
    amended, checkpoint, name
):
    (Path('bare.py')).write_text(
        "default_scope = 'mmpretrain'\n"
        'train_dataloader = dict(num_workers=2)\n'
        'test_dataloader = dict(num_workers=0, pin_memory=False)\n'
        'test_cfg = dict()'
    )
    files = ['bare.py'] if name == 'train' else ['bare.py', checkpoint]
    cfg = amended(name, *files)
    collate = {'collate_fn': {'type': 'default_collate'}}
    assert cfg.train_dataloader == collate | {
        'num_workers': 2, 'pin_memory': True, 'persistent_workers': True
    }  # fmt: skip
    assert cfg.test_dataloader == collate | {
        'num_workers': 0, 'pin_memory': False, 'persistent_workers': False
    }  # fmt: skip

    cfg = amended(name, *files, '--no-pin-memory', '--no-persistent-workers')
    assert not cfg.train_dataloader.pin_memory
    assert not cfg.train_dataloader.persistent_workers

    files[0] = 'detector.py'
    assert 'pin_memory' not in amended(name, *files).train_dataloader
    cfg = amended(name, *files, '--no-pin-memory')
    assert cfg.test_dataloader.pin_memory is False


@pytest.mark.parametrize('task', ['detector', 'classifier', 'segmentor'])
def test_a_window_shows_what_is_drawn(amended, checkpoint, task):
    options = ('--show', '--wait-time', 0.5)
    hook = amended('test', f'{task}.py', checkpoint, *options)['default_hooks']
    hook = hook.visualization
    assert hook.show and hook.wait_time == 0.5
    assert hook.get('draw') or hook.get('enable')


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


def test_upernet_has_its_own_augmentation(amended, checkpoint):
    config = ROOT / 'configs/upernet/ivit_t_160k_ade20k.py'
    cfg = amended('test', config, checkpoint, '--tta')
    scales, flips, *_ = cfg.test_dataloader.dataset.pipeline[1].transforms
    assert (len(scales), len(flips)) == (6, 2)
    assert cfg.model.type == 'SegTTAModel' and cfg.model.module.type == 'EncoderDecoder'


METRICS_OUT = ['--out', 'a.pkl.gz', '--out-item', 'metrics']
DRAWN_TTA = ['--tta', '--show-dir', 'a']
MASKS = ['--cfg-options', 'model.roi_head.mask_head=None', '--tta']
FLEXIBLE = ['--cfg-options', 'runner_type=FlexibleRunner', '--trust-checkpoint']
APEX = ['--cfg-options', 'optim_wrapper.type=ApexOptimWrapper', '--amp']


@pytest.mark.parametrize(
    'name, task, args, message',
    [
        ('test', 'detector', ['missing.pth'], 'no checkpoint at missing.pth'),
        ('test', 'detector', ['any.pth', '--out', 'a.json'], 'must end in .pkl'),
        ('test', 'detector', ['any.pth', '--out', 'folder'], 'must end in .pkl'),
        ('test', 'segmentor', ['any.pth', '--out', 'a.json'], 'must end in .pkl'),
        ('test', 'detector', ['any.pth', '--out-item', 'pred'], 'needs --out'),
        ('test', 'detector', ['any.pth', *METRICS_OUT], 'must end in one of'),
        ('test', 'detector', ['any.pth', '--interval', '0'], 'must be positive'),
        (
            'test',
            'segmentor',
            ['any.pth', '--show-dir', 'a', '--interval', '2'],
            'mmseg draws every image',
        ),
        ('test', 'detector', ['any.pth', *MASKS], 'MaskRCNN is evaluated by its masks'),
        ('test', 'classifier', ['any.pth', *DRAWN_TTA], 'cannot draw augmented'),
        ('test', 'detector', ['any.pth', *FLEXIBLE], 'needs mmattn.Runner'),
        ('train', 'detector', FLEXIBLE, 'needs mmattn.Runner'),
        ('train', 'detector', APEX, "is 'ApexOptimWrapper'"),
        (
            'train',
            'detector',
            ['--auto-scale-lr', '--cfg-options', 'auto_scale_lr=None'],
            'needs auto_scale_lr.base_batch_size',
        ),
    ],
)
def test_what_cannot_be_done_is_said_first(
    tool, checkpoint, capsys, name, task, args, message
):
    with pytest.raises((SystemExit, ValueError)) as caught:
        tool(name, f'{task}.py', *args, patched={'build_runner': None})
    assert message in str(caught.value) + capsys.readouterr().err


def test_segmentation_has_no_default_augmentation(tool, checkpoint):
    config = Path('plain.py')
    config.write_text("default_scope = 'mmseg'\ntest_dataloader = dict(dataset=dict())")
    with pytest.raises(ValueError, match='needs tta_model and tta_pipeline'):
        tool('test', config, checkpoint, '--tta')


@pytest.mark.skipif(torch.cuda.is_available(), reason='float16 can be read')
def test_detection_has_no_amp_on_a_cpu(tool, checkpoint):
    with pytest.raises(ValueError, match='bfloat16'):
        tool('test', 'detector.py', checkpoint, '--amp')
