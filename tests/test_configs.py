"""Every config builds and says what the paper says; each method trains and tests."""

import importlib
import math
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from mmengine.config import Config  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import MODELS as ROOT_MODELS  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.engine import Runner  # noqa: E402
from mmattn.models import LiSANet, ViT  # noqa: E402
from mmattn.registry import MODELS  # noqa: E402

ROOT = Path(__file__).parents[1]
for folder in ('tools/dev', 'tools/datasets'):
    sys.path.insert(0, str(ROOT / folder))
model_zoo = importlib.import_module('generate_model_zoo')
toy = importlib.import_module('toy')

LEAVES = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
BASES = sorted((ROOT / 'configs' / '_base_').rglob('*.py'))
ENTRIES = {
    ROOT / model['Config']: model
    for metafile in model_zoo.metafiles()
    for model in model_zoo.read_models(metafile)
}
MAX_LEAF_LINES = 40
GPUS = 8


def config_id(path: Path) -> str:
    return f'{path.parent.name}/{path.stem}'


def walk(value):
    """Yields every dict inside a config."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from walk(item)


@pytest.mark.parametrize('path', LEAVES, ids=config_id)
def test_config_builds_with_the_counts_of_its_metafile(path):
    cfg = Config.fromfile(path)
    assert cfg.default_scope in ('mmdet', 'mmseg', 'mmpretrain')
    assert cfg.auto_scale_lr.enable is False
    assert cfg.auto_scale_lr.base_batch_size > 0
    if path in ENTRIES:
        metadata = ENTRIES[path]['Metadata']
        counted = model_zoo.count(ENTRIES[path])
        assert counted == {key: metadata[key] for key in counted}
    else:
        build(cfg)


@pytest.mark.parametrize('path', LEAVES, ids=config_id)
def test_leaf_is_short_and_inherits_relative_files(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LEAF_LINES
    assert '::' not in text
    for base in re.findall(r"'([^']+\.py)'", text):
        assert (path.parent / base).is_file()


@pytest.mark.parametrize('path', BASES, ids=config_id)
def test_base_has_no_base_and_no_backbone(path):
    cfg = Config.fromfile(path)
    assert '_base_' not in path.read_text()
    assert 'backbone' not in cfg.get('model', {})


@pytest.mark.parametrize('path', LEAVES + BASES, ids=config_id)
def test_types_of_ours_are_prefixed(path):
    types = {d['type'] for d in walk(Config.fromfile(path)._cfg_dict) if 'type' in d}
    assert not types & set(MODELS.module_dict)


def test_metafiles_agree_with_the_configs():
    assert model_zoo.problems() == []


@pytest.mark.parametrize(
    'change, problem',
    [
        ({'Name': 'other'}, 'Name is other, not ivit_t_3x_coco'),
        ({'Metadata': {'Epochs': 12, 'Batch Size': 16}}, 'Epochs is 12, not 36'),
        ({'In Collection': 'other'}, "no collection 'other'"),
        ({'Config': 'configs/none.py'}, 'no config configs/none.py'),
        (
            {'Weights': 'x.pth', 'Training Log': 'x', 'Hardware': 'x'},
            'a measurement without Commit',
        ),
    ],
    ids=['name', 'epochs', 'collection', 'config', 'evidence'],
)
def test_a_wrong_entry_of_a_metafile_is_reported(change, problem):
    entry = ENTRIES[ROOT / 'configs/mask_rcnn/ivit_t_3x_coco.py']
    known = {entry['In Collection']}
    assert model_zoo.model_problems(entry, known) == []
    assert model_zoo.model_problems(entry | change, known) == [problem]


@pytest.mark.parametrize('readme', model_zoo.readmes(), ids=config_id)
def test_readme_tables_are_up_to_date(readme):
    assert model_zoo.with_tables(readme) == readme.read_text(), (
        'run tools/dev/generate_model_zoo.py'
    )


def test_counts_and_table_are_written_where_they_belong(tmp_path):
    text = model_zoo.metafiles()[1].read_text()
    fields = ['Parameters', 'FLOPs', model_zoo.WITHOUT_TRANSFORMS]
    counts = {
        model['Name']: {
            field: i * 10**9 + j
            for j, field in enumerate(fields)
            if field in model['Metadata']
        }
        for i, model in enumerate(yaml.safe_load(text)['Models'], 1)
    }
    assert {len(count) for count in counts.values()} == {2, 3}
    emptied = re.sub(rf'({"|".join(fields)}):.*', r'\1:', text)
    filled = yaml.safe_load(model_zoo.with_counts(emptied, counts))
    for model in filled['Models']:
        assert model['Metadata'].items() >= counts[model['Name']].items()
    assert model_zoo.with_counts(text, counts) == model_zoo.with_counts(emptied, counts)


# Tables 9 and 10 of arXiv 2402.17507 and appendix A.2 of arXiv 2211.16289: optimiser,
# learning rate, weight decay, batch, epochs or iterations, warm-up, stochastic depth.
# A warm-up of None is not the paper's; 0 is none.
LAMB = ('Lamb', 8e-3, 0.05, 4096, 300, 20)
ADAMW = ('AdamW', 1e-3, 0.05, 1024, 300, 5)
FINE_TUNING = ('AdamW', 5e-6, 1e-8, 1024, 30, 5)
DETECTION = ('AdamW', 1e-4, 0.05, 16, 36, None)
SEGMENTATION = ('AdamW', 8e-5, 0.05, 16, 160000, None)
LISA = ('AdamW', 1e-3, 0.05, 1024, 300, 20)
LISA_21K = ('AdamW', 4e-3, 0.05, 4096, 90, 5)
LISA_FROM_21K = ('AdamW', 5e-5, 1e-8, 512, 30, 0)
LISA_DETECTION = ('AdamW', 1e-4, 0.05, 16, 12, None)
LISA_SEGMENTATION = ('AdamW', 1e-4, 1e-4, 16, 80000, 0)
PAPER = {
    'classification/ivit_t_300e_in1k': (*LAMB, 0.15),
    'classification/ivit_s_300e_in1k': (*LAMB, 0.3),
    'classification/ivit_b_300e_in1k': (*LAMB, 0.4),
    'classification/vit_t16_mhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_t16_imhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_s16_mhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_s16_imhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_t8_mhsa_300e_in1k': (*ADAMW, 0.1),
    'classification/vit_t8_imhsa_300e_in1k': (*ADAMW, 0.1),
    **{
        f'classification/vit_{size}_{attention}_{side}_30e_in1k': (*FINE_TUNING, 0.1)
        for size in ('t16', 's16')
        for attention in ('mhsa', 'imhsa')
        for side in (448, 672, 896)
    },
    'mask_rcnn/ivit_t_3x_coco': (*DETECTION, 0.2),
    'mask_rcnn/ivit_s_3x_coco': (*DETECTION, 0.3),
    'mask_rcnn/ivit_b_3x_coco': (*DETECTION, 0.4),
    'upernet/ivit_t_160k_ade20k': (*SEGMENTATION, 0.4),
    'upernet/ivit_s_160k_ade20k': (*SEGMENTATION, 0.4),
    'upernet/ivit_b_160k_ade20k': (*SEGMENTATION, 0.4),
    'classification/lisanet_i_150e_in1k': ('AdamW', 1e-3, 0.05, 1024, 150, 20, 0.0),
    'classification/lisanet_i_384_30e_in1k': (*FINE_TUNING, 0.0),
    'classification/lisanet_s_300e_in1k': (*LISA, 0.1),
    'classification/lisanet_b_300e_in1k': (*LISA, 0.4),
    'classification/hylisanet_s_300e_in1k': (*LISA, 0.1),
    'classification/hylisanet_b_300e_in1k': (*LISA, 0.4),
    'classification/hylisanet_s_90e_in21k': (*LISA_21K, 0.1),
    'classification/hylisanet_b_90e_in21k': (*LISA_21K, 0.2),
    'classification/hylisanet_s_in21k_30e_in1k': (*LISA_FROM_21K, 0.1),
    'classification/hylisanet_b_in21k_30e_in1k': (*LISA_FROM_21K, 0.2),
    'mask_rcnn/lisanet_s_1x_coco': (*LISA_DETECTION, 0.1),
    'mask_rcnn/hylisanet_s_1x_coco': (*LISA_DETECTION, 0.1),
    'sem_fpn/lisanet_s_80k_ade20k': (*LISA_SEGMENTATION, 0.15),
    'sem_fpn/hylisanet_s_80k_ade20k': (*LISA_SEGMENTATION, 0.15),
}


def test_every_config_of_a_paper_is_in_the_table():
    assert {config_id(path) for path in ENTRIES} == set(PAPER)


@pytest.mark.parametrize('name', PAPER)
def test_hyper_parameters_are_the_papers(name):
    optimizer, lr, decay, batch, length, warmup, drop_path = PAPER[name]
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    assert cfg.optim_wrapper.optimizer.type == optimizer
    assert cfg.optim_wrapper.optimizer.lr == lr
    assert cfg.optim_wrapper.optimizer.weight_decay == decay
    assert cfg.auto_scale_lr.base_batch_size == batch
    assert cfg.train_dataloader.batch_size * GPUS == batch
    assert cfg.model.backbone.drop_path_rate == drop_path
    *warmups, last = cfg.param_scheduler
    loop = cfg.train_cfg
    assert last.end == loop.get('max_epochs', loop.get('max_iters')) == length
    if warmup is not None:
        assert sum(scheduler.end for scheduler in warmups) == last.begin == warmup
        assert last.type == 'CosineAnnealingLR'
        assert last.begin + last.T_max == last.end


@pytest.mark.parametrize(
    'name, mixes, repeats, classes',
    [
        ('ivit_t_300e_in1k', True, False, 1000),
        ('lisanet_i_150e_in1k', True, True, 1000),
        ('lisanet_i_384_30e_in1k', True, True, 1000),
        ('hylisanet_b_300e_in1k', True, True, 1000),
        ('hylisanet_b_90e_in21k', True, False, 21841),
        ('hylisanet_b_in21k_30e_in1k', False, False, 1000),
    ],
)
def test_classification_augmentation_is_the_papers(name, mixes, repeats, classes):
    cfg = Config.fromfile(ROOT / f'configs/classification/{name}.py')
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    rand_augment = steps['RandAugment']
    assert (rand_augment.magnitude_level, rand_augment.magnitude_std) == (9, 0.5)
    assert steps['RandomErasing'].erase_prob == 0.25
    sampler = cfg.train_dataloader.sampler.type
    assert sampler == ('RepeatAugSampler' if repeats else 'DefaultSampler')
    classifier = build(cfg)
    mixed = classifier.data_preprocessor.batch_augments
    augments = {type(a).__name__: a.alpha for a in mixed.augments} if mixed else {}
    assert augments == ({'Mixup': 0.8, 'CutMix': 1.0} if mixes else {})
    assert classifier.head.loss_module.label_smooth_val == 0.1
    assert classifier.head.num_classes == classes
    assert classifier.data_preprocessor.num_classes == classes


@pytest.mark.parametrize('size', ['s', 'b'])
def test_learning_rates_from_in21k_fall_to_those_of_convnext(size):
    cfg = Config.fromfile(
        ROOT / f'configs/classification/hylisanet_{size}_in21k_30e_in1k.py'
    )
    init_default_scope(cfg.default_scope)
    wrapper = build_optim_wrapper(build(cfg), cfg.optim_wrapper)
    rates = [group['lr'] for group in wrapper.optimizer.param_groups]
    assert max(rates) == 5e-5
    assert min(rates) / max(rates) == pytest.approx(0.8**13, rel=0.02)


@pytest.mark.parametrize(
    'name',
    [
        'classification/ivit_t_300e_in1k',
        'classification/vit_t16_imhsa_300e_in1k',
        'classification/lisanet_i_150e_in1k',
        'classification/hylisanet_s_90e_in21k',
        'mask_rcnn/ivit_t_3x_coco',
        'mask_rcnn/hylisanet_s_1x_coco',
        'upernet/ivit_t_160k_ade20k',
    ],
)
def test_weight_decay_spares_norms_biases_scales_tables_and_mixing_weights(name):
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    init_default_scope(cfg.default_scope)
    model = build(cfg)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decay = {
        id(parameter): group['weight_decay']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    for parameter_name, parameter in model.named_parameters():
        exempt = re.search(r'\.(pos_embed|bias|w[12]_[qk])$', parameter_name)
        spared = parameter.ndim <= 1 or exempt
        assert decay[id(parameter)] == (0 if spared else 0.05), parameter_name


SHRINK = 8
SHRUNK_KEYS = ('scale', 'scales', 'crop_size', 'size')


def shrink(value):
    """Divides the sizes in a detection or segmentation config, in place."""
    for d in walk(value):
        for key in SHRUNK_KEYS:
            if key in d:
                d[key] = shrunk(d[key])


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
            value = source.backbone._pos_embed((grid, grid)).flatten(1, 2)
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
