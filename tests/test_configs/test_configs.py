"""Every config builds, follows its paper's recipe, and is in the metafiles."""

import functools
import re
from ast import literal_eval

import pytest
import torch
from config_files import (
    LEAVES,
    OTHER_NETWORKS,
    RECIPES,
    ROOT,
    config_id,
    load,
    metafiles,
)
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS, TRANSFORMS, DefaultScope

from mmattn.analysis.flops import build
from mmattn.engine.config_check import check_arguments, check_scopes
from mmattn.engine.map_check import check_maps
from mmattn.engine.schedule import Length, mismatches, scaled
from mmattn.models.presets import SIZES, all_presets, short_name
from mmattn.registry import MODELS
from mmattn.weights.names import find_published
from tools.dev import tables
from tools.papers.tables import papers

ENTRIES = {
    config_id(ROOT / model['Config']): model
    for metafile in metafiles.metafiles()
    for model in metafiles.read_models(metafile)
}


def walk(value):
    """Yield every dict inside a config."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from walk(item)


def each_type(cfg) -> set:
    return {d['type'] for d in walk(cfg) if 'type' in d}


def size(path) -> int:
    """Return the place of the size in a config's name, such as t in `ivit_t_*`."""
    sizes = list(SIZES.values())
    return max((sizes.index(p) for p in path.stem.split('_') if p in sizes), default=0)


def network(path) -> str:
    """Return `pvt_v2` for `pvt_v2_b2_li_1x_coco`."""
    return re.split(r'_(?:x*[bilmnst]\d*|\d+e)_', path.stem)[0]


def smallest_are_fast(kinds):
    """Parametrize over configs; a small one of each kind is fast, others are slow."""
    seen, rows = set(), []
    for path in sorted(LEAVES, key=size):
        new = kinds(path) - seen
        rows.append(
            pytest.param(config_id(path), marks=() if new else pytest.mark.slow)
        )
        seen |= new
    return pytest.mark.parametrize('name', rows)


@smallest_are_fast(lambda path: {path.parent, network(path)})
def test_config_builds(name):
    cfg = load(name)
    model = build(cfg)
    if name in ENTRIES:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert parameters == ENTRIES[name]['Metadata']['Parameters']
    if cfg.optim_wrapper.type == 'OptimWrapper':  # DeepSpeed is not installed
        check_optimizer(cfg, model)


@smallest_are_fast(lambda path: {path.parent})
def test_maps_fit(name):
    cfg = load(name)
    check_maps(cfg.model, build(cfg))


def names_of_our_own() -> set[str]:
    """Names without those of mm packages, as `DetDataPreprocessor`, which we extend."""
    return {
        name
        for name, cls in MODELS.module_dict.items()
        if name not in {base.__name__ for base in cls.__mro__[1:]}
    }


@pytest.mark.parametrize('name', [config_id(path) for path in LEAVES])
def test_settings(name):
    cfg = load(name)
    types = each_type(cfg._cfg_dict)
    assert not types & names_of_our_own(), 'types of ours need their prefix'
    check_scopes(cfg.model, 'model')
    check_arguments(cfg.model)
    check_start(name, cfg)
    check_pipelines(cfg)
    check_schedule(cfg)


def check_optimizer(cfg, model):
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    groups = wrapper.optimizer.param_groups
    assert {id(p) for group in groups for p in group['params']} >= trained


def check_start(name, cfg):
    """Check that a dense model starts from weights that its own backbone has."""
    folder = name.partition('/')[0]
    backbone = cfg.model.backbone
    if cfg.default_scope == 'mmpretrain' or folder in ('demo', 'evidence'):
        assert 'init_cfg' not in backbone  # on purpose
        return
    assert backbone.init_cfg.type == 'Pretrained'
    start = backbone.init_cfg.checkpoint
    if start.startswith('work_dirs/'):
        _, classifier, weights = start.split('/')
        source = load(f'classification/{classifier}')
        assert weights == f'epoch_{source.train_cfg.max_epochs}.pth'
        source = source.model.backbone
    elif start == 'torchvision://resnet50':
        source = dict(type=backbone.type)
        assert 'ResNet' in backbone.type
    else:
        file = find_published(start)
        source = dict(type=file['type'], **file['args'])
    keys = 'type', 'arch'
    assert [source.get(key) for key in keys] == [backbone.get(key) for key in keys]


def check_pipelines(cfg):
    loaders = [key for key in cfg if key.endswith('_dataloader') and cfg[key]]
    assert 'train_dataloader' in loaders
    for loader in loaders:
        pipeline = cfg[loader].dataset.pipeline
        build_pipeline(cfg.default_scope, repr([step.to_dict() for step in pipeline]))


@functools.cache
def build_pipeline(scope: str, pipeline: str):
    """Build a pipeline once for the many configs that share it."""
    with DefaultScope.overwrite_default_scope(scope):
        for step in literal_eval(pipeline):
            TRANSFORMS.build(step)


def check_schedule(cfg):
    """Check that the schedule ends with the run, also for a run of twice the length."""
    epochs, iters = (cfg.train_cfg.get(key) for key in ('max_epochs', 'max_iters'))
    by_epoch = epochs is not None
    # A checkpoint of the last iteration without metrics would be no result.
    assert (epochs or iters) % cfg.train_cfg.get('val_interval', 1) == 0
    run = (
        Length(epochs, epochs * 1251, 1251) if by_epoch else Length(1, iters, 0, False)
    )
    twice = run._replace(epochs=2 * run.epochs, iters=2 * run.iters)

    def found(schedulers, run):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        defaults = dict(optimizer=optimizer, epoch_length=run.epoch_length)
        built = [
            PARAM_SCHEDULERS.build(dict(scheduler), default_args=defaults)
            for scheduler in schedulers
        ]
        return list(mismatches(built, run))

    assert found(cfg.param_scheduler, run) == []
    assert found(cfg.param_scheduler, twice)
    assert found(scaled(cfg.param_scheduler, twice), twice) == []


def test_recipes_are_the_papers():
    """Compare what each config trains with and what `tools/papers` says."""
    wrong = []
    for name, recipe in RECIPES.items():
        cfg = load(name)
        optimizer, loop = cfg.optim_wrapper.optimizer, cfg.train_cfg
        warmup, *_ = cfg.param_scheduler
        found = dict(
            optimizer=optimizer.type,
            lr=pytest.approx(optimizer.lr, rel=1e-6),
            weight_decay=optimizer.weight_decay,
            batch=recipe['gpus'] * cfg.train_dataloader.batch_size,
            length=loop.get('max_epochs') or loop.max_iters,
            gpus=recipe['gpus'],
            drop_path=cfg.model.backbone.get('drop_path_rate'),
            warmup=warmup.end if warmup.type == 'LinearLR' else 0,
        )
        if recipe['warmup'] is None:
            found['warmup'] = None
        assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=recipe['batch'])
        if found != recipe:
            wrong.append(f'{name}: {found}, not {recipe}')
    assert not wrong, '\n'.join(wrong)


def test_metafiles_and_tables_are_up_to_date():
    assert metafiles.problems(papers()) == []
    stale = []
    for metafile in metafiles.metafiles():
        text = metafiles.metafile_text(metafile, metafiles.counts_in(metafile))
        stale += [metafile] * (text != metafile.read_text())
    for page in [*ROOT.glob('configs/*/README.md'), ROOT / 'docs/model_zoo.md']:
        stale += [page] * (tables.with_tables(page) != page.read_text())
    assert not stale, 'run python -m tools.dev.tables'


def test_make_demo_trains_the_network_of_the_long_run():
    """The records of other demos and of the evidence come from the long run."""
    short, long, other = (
        Config.fromfile(ROOT / f'configs/demo/mask_rcnn_{name}_hela.py')
        for name in ('ivit_n', 'ivit_n_300i', 'dat_n')
    )
    short.train_dataloader.batch_size = long.train_dataloader.batch_size
    short.model.train_cfg.rcnn.sampler.num = long.model.train_cfg.rcnn.sampler.num
    schedule = {'max_iters', 'train_cfg', 'param_scheduler', 'auto_scale_lr'}
    for key in set(long) - schedule:
        assert short[key] == long[key], key
    for key in schedule | {'train_dataloader'}:
        assert other[key] == long[key], key


def test_names_derive_from_the_presets():
    """The patch of a ViT follows its size, and a demo's name begins with the method."""
    families, begins = {}, {}
    for name, (cls, arch) in all_presets().items():
        kind, family = f'mmattn.{cls.__name__}', name.removesuffix(f'_{arch}')
        assert family.replace('_', '') == cls.__name__.lower()
        families[kind] = family
        begins[kind, arch] = short_name(name)
    for path in LEAVES:
        backbone, name = load(config_id(path)).model.backbone, f'_{path.stem}_'
        if (family := families.get(backbone.type)) is None:
            continue
        start = begins.get((backbone.type, str(backbone.arch)), family)
        for other, builder in OTHER_NETWORKS.items():
            if family == builder and f'_{other}_' in name and f'_{family}_' not in name:
                start = other
        assert re.search(rf'_{start}\d*_', name), (path.name, start)
