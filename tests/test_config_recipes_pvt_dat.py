"""Configs of PVT and DAT have the necks and weight decays of their authors' code."""

from collections import Counter

import pytest
import torch

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from config_files import RECIPES, load, parameter_groups  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402
from torch import nn  # noqa: E402

from mmattn.registry import MODELS  # noqa: E402


def build_neck(cfg: dict) -> nn.Module:
    init_default_scope('mmdet')
    return MODELS.build(cfg)


# In the authors' code of DAT++, Mask R-CNN and RetinaNet extend the pyramid by strided
# convolutions that start from the last map of the backbone; Cascade Mask R-CNN extends
# it by pooling. By method: the first of the backbone's stages that the pyramid takes,
# and the number of convolutions that extend it.
DATPP_NECKS = {'mask_rcnn': (0, 1), 'retinanet': (1, 2), 'cascade_mask_rcnn': (0, 0)}
DATPP_WIDTHS = {
    't': (64, 128, 256, 512),
    's': (96, 192, 384, 768),
    'b': (128, 256, 512, 1024),
}


@pytest.mark.parametrize(
    'name', [name for name in RECIPES if name.split('/datpp_')[0] in DATPP_NECKS]
)
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


def decays(cfg: Config) -> dict[str, set[float]]:
    """Return the weight decays of norms, and those of all else."""
    model, groups = parameter_groups(cfg)
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.LayerNorm | nn.modules.batchnorm._BatchNorm)
        for parameter in module.parameters(recurse=False)
    }
    kinds = {True: set(), False: set()}
    for parameter in model.parameters():
        kinds[id(parameter) in norms].add(groups[id(parameter)]['weight_decay'])
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
    """The authors' code decays them; the READMEs show how to do the same."""
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
    model, groups = parameter_groups(cfg)
    counts = Counter()
    for name, parameter in model.named_parameters():
        if (kind := name.rpartition('.')[2]) in ('rpb', 'rpe_table'):
            counts[kind, groups[id(parameter)]['weight_decay']] += parameter.numel()
    return dict(counts)
