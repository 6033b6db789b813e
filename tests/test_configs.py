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
from mmengine.runner import Runner  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.models import ViT  # noqa: E402
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
    names = [model['Name'] for model in yaml.safe_load(text)['Models']]
    counts = {
        name: {'Parameters': i * 10**6, 'FLOPs': i * 10**9}
        for i, name in enumerate(names, 1)
    }
    emptied = re.sub(r'(Parameters|FLOPs):.*', r'\1:', text)
    filled = yaml.safe_load(model_zoo.with_counts(emptied, counts))
    for model in filled['Models']:
        assert model['Metadata'].items() >= counts[model['Name']].items()
    assert model_zoo.with_counts(text, counts) == model_zoo.with_counts(emptied, counts)


# Tables 9 and 10 of arXiv 2402.17507: optimiser, learning rate, weight decay, batch,
# epochs or iterations, warm-up, stochastic depth.
LAMB = ('Lamb', 8e-3, 0.05, 4096, 300, 20)
ADAMW = ('AdamW', 1e-3, 0.05, 1024, 300, 5)
FINE_TUNING = ('AdamW', 5e-6, 1e-8, 1024, 30, 5)
DETECTION = ('AdamW', 1e-4, 0.05, 16, 36, None)
SEGMENTATION = ('AdamW', 8e-5, 0.05, 16, 160000, None)
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
}


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
    first, last = cfg.param_scheduler
    loop = cfg.train_cfg
    assert last.end == loop.get('max_epochs', loop.get('max_iters')) == length
    if warmup is not None:
        assert first.end == last.begin == warmup
        assert last.begin + last.T_max == last.end


def test_classification_augmentation_is_the_papers():
    cfg = Config.fromfile(ROOT / 'configs/classification/ivit_t_300e_in1k.py')
    steps = {step.type: step for step in cfg.train_pipeline}
    rand_augment = steps['RandAugment']
    assert (rand_augment.magnitude_level, rand_augment.magnitude_std) == (9, 0.5)
    assert steps['RandomErasing'].erase_prob == 0.25
    augments = {augment.type: augment.alpha for augment in cfg.model.train_cfg.augments}
    assert augments == {'Mixup': 0.8, 'CutMix': 1.0}
    assert cfg.model.head.loss.label_smooth_val == 0.1


@pytest.mark.parametrize(
    'name',
    [
        'classification/ivit_t_300e_in1k',
        'classification/vit_t16_imhsa_300e_in1k',
        'mask_rcnn/ivit_t_3x_coco',
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
        exempt = re.search(r'\.(pos_embed|w[12]_[qk])$', parameter_name)
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


DATA = {'mmpretrain': 'imagenet', 'mmdet': 'coco', 'mmseg': 'ade20k'}
DATA_ROOTS = {'imagenet': 'data/imagenet', 'coco': 'data/coco', 'ade20k': 'data/ade'}


@pytest.fixture
def small_config(tmp_path, monkeypatch):
    """Makes a config one of a single iteration, beside toy data of the real layout."""
    monkeypatch.chdir(tmp_path)

    def load(name: str) -> Config:
        cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
        data = DATA[cfg.default_scope]
        toy.MAKERS[data](Path(DATA_ROOTS[data]), num_images=2)
        if cfg.default_scope != 'mmpretrain':
            shrink(cfg._cfg_dict)
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            loader.update(num_workers=0, persistent_workers=False)
        cfg.train_dataloader.batch_size = 2
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


@pytest.mark.parametrize('attention', ['mhsa', 'imhsa'])
@pytest.mark.parametrize('side', [448, 672, 896])
def test_fine_tuning_starts_from_the_weights_at_224(tmp_path, attention, side):
    """`load_from` fits the position embedding and takes all else as it is."""
    from mmattn.engine import Runner

    arch = dict(ViT.arch_zoo['tiny'], depth=1)
    configs = [
        Config.fromfile(ROOT / f'configs/classification/{name}.py')
        for name in (
            f'vit_t16_{attention}_300e_in1k',
            f'vit_t16_{attention}_{side}_30e_in1k',
        )
    ]
    for cfg in configs:
        cfg.model.backbone.arch = arch
    assert Path(configs[1].load_from).parts[1] == f'vit_t16_{attention}_300e_in1k'
    init_default_scope('mmpretrain')
    source = ROOT_MODELS.build(configs[0].model)
    torch.save({'state_dict': source.state_dict()}, tmp_path / 'epoch_300.pth')
    runner = Runner(
        configs[1].model,
        str(tmp_path),
        load_from=str(tmp_path / 'epoch_300.pth'),
        default_scope='mmpretrain',
        experiment_name=f'{tmp_path.name}_{attention}_{side}',
    )
    runner.load_or_resume()
    loaded, grid = runner.model.state_dict(), side // 16
    assert set(loaded) == set(source.state_dict())
    for name, value in source.state_dict().items():
        if name == 'backbone.pos_embed':
            value = source.backbone._pos_embed((grid, grid)).flatten(1, 2)
            assert value.shape == (1, grid * grid, 192)
        torch.testing.assert_close(loaded[name], value)


def test_classifier_weights_go_into_a_detector(tmp_path):
    """As `configs/mask_rcnn/README.md` says."""
    cfg = Config.fromfile(ROOT / 'configs/classification/ivit_t_300e_in1k.py')
    backbone = ROOT_MODELS.build(cfg.model.backbone | dict(arch='nano'))
    state = {f'backbone.{key}': value for key, value in backbone.state_dict().items()}
    torch.save({'state_dict': state}, tmp_path / 'epoch_300.pth')
    cfg = Config.fromfile(ROOT / 'configs/mask_rcnn/ivit_t_3x_coco.py')
    init_cfg = dict(
        type='Pretrained',
        prefix='backbone.',
        checkpoint=str(tmp_path / 'epoch_300.pth'),
    )
    detector = ROOT_MODELS.build(
        cfg.model.backbone | dict(arch='nano', init_cfg=init_cfg)
    )
    detector.init_weights()
    loaded = detector.state_dict()
    for key, value in backbone.state_dict().items():
        torch.testing.assert_close(loaded[key], value)
