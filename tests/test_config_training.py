"""Each method trains and tests, and starts from the weights that its config names."""

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS as ROOT_MODELS  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402

from mmattn.engine import Runner  # noqa: E402
from mmattn.models import LiSANet, ViT  # noqa: E402
from mmattn.models.layers import pos_embed_map  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / 'tools/datasets'))
toy = importlib.import_module('toy')

SHRINK = 8
SHRUNK_KEYS = ('scale', 'scales', 'crop_size', 'size')


def shrink(value):
    """Divides the sizes in a detection or segmentation config, in place."""
    if isinstance(value, dict):
        for key in SHRUNK_KEYS:
            if key in value:
                value[key] = shrunk(value[key])
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            shrink(item)


def shrunk(size):
    return size // SHRINK if isinstance(size, int) else type(size)(map(shrunk, size))


# By the data set's type: a maker of toy data, and where.
DATA = {
    'ImageNet': ('imagenet', 'data/imagenet'),
    'ImageNet21k': ('imagenet', 'data/imagenet21k'),
    'CocoDataset': ('coco', 'data/coco'),
    'ADE20KDataset': ('ade20k', 'data/ade'),
}
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def shallow(arch: str) -> dict:
    """LiSANet's `arch` with a block a stage."""
    arch = LiSANet.arch_zoo[arch]
    return dict(arch, depths=(1,) * len(arch['depths']))


@pytest.fixture
def small_config(tmp_path, monkeypatch):
    """Makes a config one of a single iteration, beside toy data of the real layout."""
    monkeypatch.chdir(tmp_path)

    def load(name: str) -> Config:
        cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
        layout, root = DATA[cfg.train_dataloader.dataset.type]
        toy.MAKERS[layout](Path(root), num_images=2)
        if cfg.default_scope != 'mmpretrain':
            shrink(cfg._cfg_dict)
        if cfg.model.backbone.type == 'mmattn.LiSANet':
            cfg.model.backbone.arch = shallow(cfg.model.backbone.arch)
        for loader in filter(None, map(cfg.get, LOADERS)):
            loader.update(num_workers=0, persistent_workers=False)
        cfg.train_dataloader.batch_size = 2
        if cfg.test_dataloader:
            cfg.test_dataloader.dataset.indices = 1
        if cfg.train_cfg.type == 'IterBasedTrainLoop':
            cfg.train_cfg.update(max_iters=1, val_interval=1)
            cfg.default_hooks.checkpoint.interval = 1
        else:
            cfg.train_cfg.max_epochs = 1
        cfg.default_hooks.checkpoint.save_optimizer = False
        cfg.work_dir = 'work_dir'
        cfg.experiment_name = f'{tmp_path.name}_{name.replace("/", "_")}'
        cfg.randomness = dict(seed=0)
        return cfg

    return load


@pytest.mark.parametrize(
    'name, metric',
    [
        ('classification/ivit_t_300e_in1k', 'accuracy/top5'),
        ('classification/vit_t16_imhsa_300e_in1k', 'accuracy/top1'),
        ('mask_rcnn/ivit_t_3x_coco', 'coco/segm_mAP'),
        ('upernet/ivit_t_160k_ade20k', 'mIoU'),
        ('classification/lisanet_i_150e_in1k', 'accuracy/top1'),
        ('mask_rcnn/hylisanet_s_1x_coco', 'coco/segm_mAP'),
        ('sem_fpn/lisanet_s_80k_ade20k', 'mIoU'),
    ],
)
def test_method_trains_and_tests(small_config, name, metric):
    cfg = small_config(name)
    if cfg.default_scope == 'mmdet':  # untrained, it is sure of nothing
        cfg.model.test_cfg.rpn.max_per_img = 20
        cfg.model.test_cfg.rcnn.score_thr = 0.0
    runner = Runner.from_cfg(cfg)
    runner.train()
    loss = runner.message_hub.get_scalar('train/loss').current()
    assert math.isfinite(loss) and loss > 0
    assert metric in runner.test()
    assert list(Path('work_dir').glob('*_1.pth'))


def test_upernet_tests_at_several_scales(small_config):
    cfg = small_config('upernet/ivit_t_160k_ade20k')
    cfg.model = dict(**cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    assert 'mIoU' in Runner.from_cfg(cfg).test()


def fine_tuning(tmp_path, start: str, name: str, arch: dict):
    """Two classifiers: one of the config that `load_from` names, and the other after
    loading its weights, of the config `name`."""
    configs = [
        Config.fromfile(ROOT / f'configs/classification/{config}.py')
        for config in (start, name)
    ]
    for cfg in configs:
        cfg.model.backbone.arch = arch
    load_from = Path(configs[1].load_from)
    assert load_from.parts[1] == start
    assert load_from.stem == f'epoch_{configs[0].train_cfg.max_epochs}'
    init_default_scope('mmpretrain')
    source = ROOT_MODELS.build(configs[0].model)
    torch.save({'state_dict': source.state_dict()}, tmp_path / load_from.name)
    runner = Runner(
        configs[1].model,
        str(tmp_path),
        load_from=str(tmp_path / load_from.name),
        default_scope='mmpretrain',
        experiment_name=f'{tmp_path.name}_{name}',
    )
    runner.load_or_resume()
    return source, runner.model


@pytest.mark.parametrize('attention', ['mhsa', 'imhsa'])
@pytest.mark.parametrize('side', [448, 672, 896])
def test_fine_tuning_starts_from_the_weights_at_224(tmp_path, attention, side):
    """`load_from` fits the position embedding and takes all else as it is."""
    source, model = fine_tuning(
        tmp_path,
        f'vit_t16_{attention}_300e_in1k',
        f'vit_t16_{attention}_{side}_30e_in1k',
        dict(ViT.arch_zoo['tiny'], depth=1),
    )
    loaded, grid = model.state_dict(), side // 16
    assert set(loaded) == set(source.state_dict())
    for name, value in source.state_dict().items():
        if name == 'backbone.pos_embed':
            value = pos_embed_map(value, (14, 14), (grid, grid)).flatten(1, 2)
            assert value.shape == (1, grid * grid, 192)
        torch.testing.assert_close(loaded[name], value)


def test_lisanet_at_384_starts_with_what_the_weights_at_224_give_there(tmp_path):
    """Kernels and position embedding come to the new grid, and nothing else changes."""
    source, model = fine_tuning(
        tmp_path,
        'lisanet_i_150e_in1k',
        'lisanet_i_384_30e_in1k',
        shallow('isotropic'),
    )
    assert model.backbone.grid_size == (24, 24) != source.backbone.grid_size
    images = torch.randn(1, 3, 384, 384, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), source.eval()(images))


def test_fine_tuning_starts_from_what_in21k_trained(small_config):
    """All but the classifier, which has other classes and starts near 0."""
    cfg = small_config('classification/hylisanet_s_90e_in21k')
    runner = Runner.from_cfg(cfg)
    runner.train()
    source = runner.model.state_dict()
    cfg = small_config('classification/hylisanet_s_in21k_30e_in1k')
    assert cfg.load_from == 'work_dirs/hylisanet_s_90e_in21k/epoch_90.pth'
    cfg.load_from = 'work_dir/epoch_1.pth'
    cfg.work_dir = 'fine_tuned'
    cfg.optim_wrapper.optimizer.lr = 0.0  # so that what was loaded is still there
    runner = Runner.from_cfg(cfg)
    runner.train()
    loaded = runner.model.state_dict()
    assert set(loaded) == set(source)
    for name, value in source.items():
        if not name.startswith('head.'):
            torch.testing.assert_close(loaded[name], value)
    assert source['head.fc.weight'].shape == (21841, 1536)
    assert loaded['head.fc.weight'].shape == (1000, 1536)
    assert loaded['head.fc.weight'].std().item() == pytest.approx(2e-5, rel=0.05)


@pytest.mark.parametrize(
    'classifier, detector, arch',
    [
        ('ivit_t_300e_in1k', 'ivit_t_3x_coco', 'nano'),
        ('hylisanet_s_300e_in1k', 'hylisanet_s_1x_coco', 'hybrid-nano'),
    ],
)
def test_classifier_weights_go_into_a_detector(tmp_path, classifier, detector, arch):
    """As `configs/mask_rcnn/README.md` says."""
    cfg = Config.fromfile(ROOT / f'configs/classification/{classifier}.py')
    backbone = ROOT_MODELS.build(cfg.model.backbone | dict(arch=arch))
    state = {f'backbone.{key}': value for key, value in backbone.state_dict().items()}
    torch.save({'state_dict': state}, tmp_path / 'epoch_300.pth')
    cfg = Config.fromfile(ROOT / f'configs/mask_rcnn/{detector}.py')
    init_cfg = dict(
        type='Pretrained',
        prefix='backbone.',
        checkpoint=str(tmp_path / 'epoch_300.pth'),
    )
    model = ROOT_MODELS.build(cfg.model.backbone | dict(arch=arch, init_cfg=init_cfg))
    model.init_weights()
    loaded = model.state_dict()
    for key, value in backbone.state_dict().items():
        torch.testing.assert_close(loaded[key], value)
