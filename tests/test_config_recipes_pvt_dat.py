"""Configs of PVT and DAT have the schedules and the data of their authors' code."""

from collections import Counter
from pathlib import Path

import pytest
import torch

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

import generate_model_zoo as model_zoo  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402
from paper_recipes import PAPER  # noqa: E402
from torch import nn  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.registry import MODELS  # noqa: E402

ROOT = Path(__file__).parents[1]

# With the recipe of the method, not with that of the backbone.
OTHERS = ('deformable_detr/', 'mask2former/')
OURS = [
    name
    for name in PAPER
    if name.split('/')[1].startswith(('pvt', 'dat')) and not name.startswith(OTHERS)
]
DETECTORS = [name for name in OURS if name.endswith('coco')]


def load(name: str) -> Config:
    return model_zoo.load(ROOT / 'configs' / f'{name}.py')


def build_neck(cfg: dict) -> nn.Module:
    init_default_scope('mmdet')
    return MODELS.build(cfg)


CLIPPED = {
    **{f'classification/pvt_{size}_300e_in1k': 1.0 for size in 'ml'},
    **{f'classification/pvtv2_{size}_300e_in1k': 1.0 for size in ('b3', 'b4', 'b5')},
    'classification/dat_t_300e_in1k': 5.0,
    'classification/dat_s_300e_in1k': 5.0,
    'classification/dat_b_300e_in1k': 1.0,
    'classification/dat_b_384_30e_in1k': 5.0,
    **{f'classification/datpp_{size}_300e_in1k': 5.0 for size in 'tsb'},
    'classification/datpp_b_384_30e_in1k': 5.0,
    **{f'sparse_rcnn/pvtv2_{size}_3x_coco': 1.0 for size in ('b2', 'b2_li')},
}


def test_gradients_are_clipped_at_the_authors_norms():
    clips = {name: load(name).optim_wrapper.get('clip_grad') for name in OURS}
    assert {name: clip.max_norm for name, clip in clips.items() if clip} == CLIPPED


@pytest.mark.parametrize(
    'name, ends',
    [
        ('pvt_t_300e_in1k', (1e-6, 1e-5)),
        ('pvtv2_b0_300e_in1k', (1e-6, 1e-5)),
        ('dat_t_300e_in1k', (1e-6, 1e-5)),
        ('dat_b_300e_in1k', (1e-6, 1e-5)),
        ('dat_b_384_30e_in1k', (2e-6, 1e-7)),
        ('datpp_b_384_30e_in1k', (2e-5, 2e-7)),
    ],
)
def test_learning_rates_start_and_end_as_the_authors_do(name, ends):
    cfg = load(f'classification/{name}')
    *warmups, last = cfg.param_scheduler
    factors = [scheduler.start_factor for scheduler in warmups] or [1]
    start = cfg.optim_wrapper.optimizer.lr * factors[0]
    assert (start, last.eta_min) == pytest.approx(ends)


@pytest.mark.parametrize('name', DETECTORS)
def test_detectors_have_the_authors_schedule_and_images(name):
    cfg = load(name)
    swins = '/dat_' in name
    three = '_3x_' in name
    warmup, steps = cfg.param_scheduler
    assert (warmup.end, warmup.by_epoch) == (1000 if swins else 500, False)
    assert steps.milestones == ([27, 33] if three else [8, 11])
    pipeline = cfg.train_dataloader.dataset.pipeline
    scales = [step for step in pipeline if step.type == 'RandomChoice']
    assert bool(scales) == (three or '/datpp_' in name)
    annotations = next(step for step in pipeline if step.type == 'LoadAnnotations')
    masks = 'mask_rcnn' in name
    assert annotations.get('with_mask', False) == masks
    assert cfg.val_evaluator.metric == (['bbox', 'segm'] if masks else 'bbox')
    assert cfg.model.backbone.get('frozen_stages', -1) == -1


# What the authors' code makes of DAT++'s maps: its Mask R-CNN and RetinaNet extend the
# pyramid by strided convolutions that start from the last map of the backbone, its
# Cascade Mask R-CNN by pooling. By method: the backbone's stages that the pyramid
# begins with, and how many convolutions extend it.
DATPP_NECKS = {'mask_rcnn': (0, 1), 'retinanet': (1, 2), 'cascade_mask_rcnn': (0, 0)}
DATPP_WIDTHS = {
    't': (64, 128, 256, 512),
    's': (96, 192, 384, 768),
    'b': (128, 256, 512, 1024),
}


@pytest.mark.parametrize('name', [name for name in DETECTORS if '/datpp_' in name])
def test_necks_of_dat_plus_plus_are_the_authors(name):
    method, config = name.split('/')
    first, extended = DATPP_NECKS[method]
    widths = DATPP_WIDTHS[config.split('_')[1]][first:]
    cfg = load(name).model.neck
    assert (cfg.type, cfg.num_outs, cfg.get('start_level', 0)) == ('FPN', 5, 0)
    assert cfg.get('add_extra_convs', False) == ('on_input' if extended else False)
    neck = build_neck(cfg)
    assert [conv.conv.in_channels for conv in neck.lateral_convs] == list(widths)
    added = [conv.conv for conv in neck.fpn_convs[len(widths) :]]
    inputs = (widths[-1], 256)[:extended]  # the second starts from the first
    assert [conv.in_channels for conv in added] == list(inputs)
    assert all(conv.stride == (2, 2) for conv in added)
    convs = 9 * (len(widths) * 256 + sum(inputs)) + len(widths) + extended
    count = 256 * (sum(widths) + len(widths) + convs)
    assert sum(parameter.numel() for parameter in neck.parameters()) == count


@pytest.mark.parametrize('size, added', [('t', 1_179_904), ('s', 1_769_728)])
def test_mask_rcnn_with_dat_plus_plus_makes_its_last_map_by_a_convolution(size, added):
    cfg = load(f'mask_rcnn/datpp_{size}_1x_coco').model.neck
    neck, pooling = build_neck(cfg), build_neck({**cfg, 'add_extra_convs': False})
    counts = [sum(p.numel() for p in n.parameters()) for n in (neck, pooling)]
    assert counts[0] - counts[1] == added
    maps = [torch.randn(1, c, 16 >> i, 16 >> i) for i, c in enumerate(cfg.in_channels)]
    assert torch.equal(neck(maps)[-1], neck.fpn_convs[-1](maps[-1]))


@pytest.mark.parametrize('name', [name for name in OURS if 'sem_fpn' in name])
def test_semantic_fpn_decays_as_the_authors_do(name):
    cfg = load(name)
    (schedule,) = cfg.param_scheduler
    assert (schedule.type, schedule.power, schedule.begin) == ('PolyLR', 0.9, 0)
    assert cfg.train_cfg.max_iters % cfg.train_cfg.val_interval == 0
    aligned = [step.type == 'ResizeToMultiple' for step in cfg.test_pipeline]
    assert any(aligned) == ('/pvt' in name)


def decays(cfg: Config) -> dict[str, set[float]]:
    """Which weight decays norms have, and which all else."""
    init_default_scope(cfg.default_scope)
    model = build(cfg)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    found = {
        id(parameter): group['weight_decay']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.LayerNorm | nn.modules.batchnorm._BatchNorm)
        for parameter in module.parameters(recurse=False)
    }
    kinds = {True: set(), False: set()}
    for parameter in model.parameters():
        kinds[id(parameter) in norms].add(found[id(parameter)])
    return dict(norms=kinds[True], others=kinds[False])


@pytest.mark.parametrize(
    'name, norms, others',
    [
        ('retinanet/pvt_t_1x_coco', 1e-4, 1e-4),
        ('sem_fpn/pvtv2_b0_40k_ade20k', 1e-4, 1e-4),
        ('cascade_mask_rcnn/pvtv2_b2_li_3x_coco', 0, 0.05),
        ('sparse_rcnn/pvtv2_b2_li_3x_coco', 1e-4, 1e-4),
    ],
)
def test_weight_decay_of_pvt_is_the_authors(name, norms, others):
    assert decays(load(name)) == dict(norms={norms}, others={others})


@pytest.mark.parametrize(
    'name',
    [
        'classification/datpp_t_300e_in1k',
        'mask_rcnn/datpp_t_1x_coco',
        'sem_fpn/datpp_t_80k_ade20k',
    ],
)
def test_tables_of_neighborhood_attention_decay_only_on_request(name):
    """The authors' code decays them; the READMEs say so and how to do the same."""
    cfg = load(name)
    request = {'optim_wrapper.paramwise_cfg.custom_keys.rpb.decay_mult': 1.0}
    authors = Config(cfg.to_dict())
    authors.merge_from_dict(request)
    rate = cfg.optim_wrapper.optimizer.weight_decay
    assert decay_of_tables(cfg) == {('rpb', 0.0): 13_858, ('rpe_table', 0.0): 106_738}
    assert decay_of_tables(authors) == {
        ('rpb', rate): 13_858,
        ('rpe_table', 0.0): 106_738,
    }


def decay_of_tables(cfg: Config) -> dict[tuple[str, float], int]:
    """Count the numbers in tables by their kind and weight decay."""
    init_default_scope(cfg.default_scope)
    model = build(cfg)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    decay = {
        id(parameter): group['weight_decay']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    counts = Counter()
    for name, parameter in model.named_parameters():
        if (kind := name.rpartition('.')[2]) in ('rpb', 'rpe_table'):
            counts[kind, decay[id(parameter)]] += parameter.numel()
    return dict(counts)
