"""Every config builds; metafiles and the tables of READMEs describe it."""

import functools
from ast import literal_eval

import pytest
import torch

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from config_files import BASES, LEAVES, ROOT, config_id, model_zoo  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import (  # noqa: E402
    PARAM_SCHEDULERS,
    TRANSFORMS,
    DefaultScope,
)
from torch import nn  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.analysis.paper_tables import papers  # noqa: E402
from mmattn.engine.config_check import (  # noqa: E402
    check_channels,
    check_scopes,
)
from mmattn.engine.schedule import Length, mismatches, scaled  # noqa: E402
from mmattn.registry import MODELS  # noqa: E402

ENTRIES = {
    ROOT / model['Config']: model
    for metafile in model_zoo.metafiles()
    for model in model_zoo.read_models(metafile)
}


def walk(value):
    """Yield every dict inside a config."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from walk(item)


@pytest.mark.parametrize('path', LEAVES, ids=config_id)
def test_config_builds_with_the_parameters_of_its_metafile(path):
    cfg = model_zoo.load(path)
    assert cfg.default_scope in ('mmdet', 'mmseg', 'mmpretrain')
    assert cfg.auto_scale_lr.enable is False
    assert cfg.auto_scale_lr.base_batch_size > 0
    model = build(cfg)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    check_scopes(cfg.model, 'model')
    check_channels(cfg.model, model)
    if path in ENTRIES:
        assert parameters == ENTRIES[path]['Metadata']['Parameters']
    check_schedule(cfg)


def check_schedule(cfg):
    """Check that the schedule ends with the run, also for a run of twice the length."""
    epochs, iters = (cfg.train_cfg.get(key) for key in ('max_epochs', 'max_iters'))
    by_epoch = epochs is not None
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


def first_ones_fast() -> list:
    """Return the models of the metafiles; all but one for each part are marked slow."""
    seen, models = set(), []
    for path, model in ENTRIES.items():
        parts = set(model['In Collection'].split(' with '))
        marks = pytest.mark.slow if parts <= seen else ()
        seen |= parts
        models.append(pytest.param(model, marks=marks, id=config_id(path)))
    return models


@pytest.mark.parametrize('model', first_ones_fast())
def test_counts_are_those_of_the_metafile(model):
    counted = model_zoo.count(model['Config'])
    written = {k: v for k, v in model['Metadata'].items() if k in model_zoo.COUNTED}
    assert counted == written


@functools.cache
def build_pipeline(scope: str, pipeline: str):
    """Build a pipeline once for the many configs that share it."""
    with DefaultScope.overwrite_default_scope(scope):
        for step in literal_eval(pipeline):
            TRANSFORMS.build(step)


def build_scheduler(cfg: dict, optimizer):
    cfg = dict(cfg)
    scheduler = PARAM_SCHEDULERS.get(cfg.pop('type'))
    if cfg.pop('convert_to_iter_based', False):
        return scheduler.build_iter_from_epoch(optimizer, epoch_length=9, **cfg)
    return scheduler(optimizer, **cfg)


@pytest.mark.parametrize('path', LEAVES, ids=config_id)
def test_pipelines_and_schedule_build(path):
    cfg = model_zoo.load(path)
    loaders = [key for key in cfg if key.endswith('_dataloader') and cfg[key]]
    assert 'train_dataloader' in loaders
    for loader in loaders:
        pipeline = cfg[loader].dataset.pipeline
        build_pipeline(cfg.default_scope, repr([step.to_dict() for step in pipeline]))
    if cfg.optim_wrapper.type != 'OptimWrapper':  # DeepSpeed's, which is not installed
        return
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        wrapper = build_optim_wrapper(nn.Linear(2, 2), cfg.optim_wrapper)
    for scheduler in cfg.param_scheduler:
        build_scheduler(scheduler, wrapper.optimizer)


@pytest.mark.parametrize('path', LEAVES + BASES, ids=config_id)
def test_types_of_ours_are_prefixed(path):
    types = {d['type'] for d in walk(model_zoo.load(path)._cfg_dict) if 'type' in d}
    assert not types & set(MODELS.module_dict)


def test_papers_name_all_configs_once():
    assert model_zoo.problems(papers()) == []


def no_longer(models: dict):
    del models['ivit_t_3x_coco']


def renamed(models: dict):
    models['other'] = models.pop('ivit_t_3x_coco')


def misspelled(models: dict):
    models['ivit_t_3x_coco']['box-AP'] = 1.0


def measured(models: dict):
    models['ivit_t_3x_coco']['measured'] = {
        'Weights': 'x.pth',
        'Training Log': 'x',
        'Hardware': 'x',
    }


IVIT = 'configs/mask_rcnn/ivit_t_3x_coco.py'


@pytest.mark.parametrize(
    'change, found',
    [
        (no_longer, [f'{IVIT}: of a paper or on disk, but not both']),
        (
            renamed,
            [
                f'{IVIT}: of a paper or on disk, but not both',
                'configs/mask_rcnn/other.py: of a paper or on disk, but not both',
            ],
        ),
        (misspelled, ["ivit_t_3x_coco: no metric 'box-AP'"]),
        (measured, ['ivit_t_3x_coco: a measurement without Commit']),
    ],
)
def test_a_wrong_entry_of_a_paper_is_reported(change, found):
    changed = papers()
    change(changed[0]['configs']['mask_rcnn'][0]['models'])
    assert model_zoo.problems(changed) == found


@pytest.mark.parametrize('metafile', model_zoo.metafiles(), ids=config_id)
def test_metafiles_are_up_to_date(metafile):
    text = model_zoo.metafile_text(metafile, model_zoo.counts_in(metafile))
    assert text == metafile.read_text(), 'run python -m tools.dev.generate_model_zoo'


@pytest.mark.parametrize('readme', model_zoo.readmes(), ids=config_id)
def test_readme_tables_are_up_to_date(readme):
    assert model_zoo.with_tables(readme) == readme.read_text(), (
        'run python -m tools.dev.generate_model_zoo'
    )


def test_the_table_of_speeds_has_the_lower_of_two_sets(tmp_path):
    head = 'model,pass,params_m,speedup\n'
    (tmp_path / 'm.csv').write_text(
        f'{head}ours,inference,5.04,1.2\npeer,inference,6,1.3\nours,training,5.04,0.9\n'
        'peer,training,6,1\n'
    )
    (tmp_path / 'm_avx2.csv').write_text(
        f'{head}ours,inference,5.04,1.4\npeer,inference,6,1.1\nours,training,5.04,0.8\n'
        'peer,training,6,1\n'
    )
    assert model_zoo.table(tmp_path / 'm.csv', tmp_path).splitlines() == [
        '| model | parameters (M) | inference | training |',
        '| --- | --- | --- | --- |',
        '| `ours` | 5.0 | 1.20 | 0.80 |',
        '| `peer` | 6.0 | 1.10 | 1.00 |',
    ]


def test_tables_of_exported_models_and_of_their_memory(tmp_path):
    (tmp_path / 'runtimes.csv').write_text(
        'model,pass,images_per_s,speedup,over_pytorch,difference\n'
        'slow,ONNX Runtime,2.5,0.5,1.25,1e-06\nfast,ONNX Runtime,10.0,2.0,0.8,2e-06\n'
        'slow,PyTorch,2.0,0.4,,\nfast,PyTorch,12.5,2.5,,\n'
    )
    assert model_zoo.table(tmp_path / 'runtimes.csv', tmp_path).splitlines()[2:] == [
        '| `fast` | 10.0 | 12.5 | 0.8 | 2.0 | 2e-06 |',
        '| `slow` | 2.5 | 2.0 | 1.25 | 0.5 | 1e-06 |',
    ]
    (tmp_path / 'memory.csv').write_text(
        'layer,height,width,tokens,session_mib,peak_mib,growth,peak_arena_mib\n'
        'masks,40,50,2000,64.0,9.5,1.0,11.0\n'
    )
    assert model_zoo.table(tmp_path / 'memory.csv', tmp_path).splitlines()[2:] == [
        '| masks | 40 x 50 | 2,000 | 9.5 | 1.0 | 11.0 |'
    ]
