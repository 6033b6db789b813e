"""The `compile` argument of every backbone: the same maps and gradients, by config."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from test_backbone_graphs import FEW_BLOCKS
from torch.testing import assert_close

from mmattn.models import DAT, HMaiT, IViT, ViT
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.registry import MODELS

pytest.importorskip('mmengine')

BACKBONES = sorted(
    (c for c in MODELS.module_dict.values() if issubclass(c, BaseBackbone)),
    key=lambda cls: cls.__name__,
)
CONFIGS = Path(__file__).parents[2] / 'configs'
SINGLE = dict(rtol=1e-5, atol=1e-6)  # where a part computes in float32

every_backbone = pytest.mark.parametrize('cls', BACKBONES, ids=lambda cls: cls.__name__)


# The base class compiles and checkpoints blocks; H-MaiT checkpoints heads as well.
of_each_kind = pytest.mark.parametrize(
    'cls',
    [
        pytest.param(
            cls,
            id=cls.__name__,
            marks=() if cls in (HMaiT, IViT, ViT) else pytest.mark.slow,
        )
        for cls in BACKBONES
    ],
)


def counting_backend():
    """A backend that runs graphs as they are, and the list of them."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return backend, graphs


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def build(cls, **kwargs):
    """The first preset with one block a stage, or two in all."""
    torch.manual_seed(0)
    arch = next(iter(cls.arch_zoo.values()))
    shallow = dict(depths=(1,) * len(arch.get('depths', ())), depth=2)
    arch = {key: shallow.get(key, value) for key, value in arch.items()}
    cfg = dict(type=cls.__name__, arch=arch) | kwargs
    return MODELS.build(cfg).double()


def build_few_blocks(cls, **kwargs):
    """Fewer stages compile sooner; plain networks keep a block beside a frozen one."""
    plain = 'depth' in next(iter(cls.arch_zoo.values()))
    return build(cls, **({} if plain else FEW_BLOCKS.get(cls, {})), **kwargs)


def image(size, batch=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, *size, generator=generator, dtype=torch.float64)


def maps_and_gradients(model, x):
    model.zero_grad()
    outs = model(x)
    generator = torch.Generator().manual_seed(2)
    sum(
        (out * torch.randn(out.shape, generator=generator)).sum() for out in outs
    ).backward()
    return outs, {name: p.grad for name, p in model.named_parameters()}


@of_each_kind
@pytest.mark.parametrize(
    'kwargs',
    [
        pytest.param(dict(), id='plain', marks=pytest.mark.slow),
        pytest.param(dict(with_cp=True, frozen_stages=1), id='with_cp-frozen-1'),
    ],
)
def test_maps_and_gradients_are_the_eager_ones(cls, kwargs):
    compiled = build_few_blocks(
        cls, compile=dict(backend='eager', fullgraph=True), **kwargs
    )
    eager = build_few_blocks(cls, **kwargs)
    assert eager._compiled_call_impl is None
    x = image((64, 96))
    for model in (compiled, eager):
        model.train()
    assert_close(
        maps_and_gradients(compiled, x), maps_and_gradients(eager, x), **SINGLE
    )
    with torch.no_grad():
        assert_close(compiled.eval()(x), eager.eval()(x), **SINGLE)


@pytest.mark.slow
@every_backbone
def test_changing_sizes_compile_few_graphs(cls):
    """One for the first size and one for all others, unless a grid has few pixels.

    DAT has one more: windows fill the last map, as the first, but not those between.
    """
    backend, graphs = counting_backend()
    compiled, eager = build(cls, compile=dict(backend=backend)), build(cls)
    for size in ((224, 224), (256, 288), (320, 256), (224, 416)):
        assert_close(compiled(image(size)), eager(image(size)), **SINGLE)
    assert len(graphs) == (3 if cls is DAT else 2)


@of_each_kind
def test_names_stay_and_copies_are_compiled(cls):
    backend, graphs = counting_backend()
    model = build_few_blocks(cls, compile=dict(backend='eager'))
    eager = build_few_blocks(cls)
    assert list(model.state_dict()) == list(eager.state_dict())
    x = image((64, 64))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._compiled_call_impl not in (None, model._compiled_call_impl)
        assert_close(other.state_dict(), model.state_dict())
    other.compile_options['backend'] = backend
    assert_close(copy.deepcopy(other)(x), eager(x), **SINGLE)
    assert len(graphs) == 1


def test_a_detector_trains_with_only_its_backbone_compiled():
    pytest.importorskip('mmdet')
    from mmdet.testing import demo_mm_inputs
    from mmengine.config import Config
    from mmengine.registry import MODELS as ROOT_MODELS
    from mmengine.registry import init_default_scope

    cfg = Config.fromfile(CONFIGS / 'demo' / 'mask_rcnn_ivit_n_hela.py')
    init_default_scope('mmdet')
    for head in ('bbox_head', 'mask_head'):
        cfg.model.roi_head[head].num_classes = 2
    losses = []
    for compile in (False, dict(backend='eager')):
        arch = dict(IViT.arch_zoo['nano'], depths=(1, 1, 1, 1))
        cfg.model.backbone.update(arch=arch, compile=compile, with_cp=True)
        torch.manual_seed(0)
        model = ROOT_MODELS.build(cfg.model).train()
        inputs = demo_mm_inputs(1, [[3, 64, 96]], num_classes=2, with_mask=True)
        data = model.data_preprocessor(inputs, training=True)
        torch.manual_seed(0)
        loss, _ = model.parse_losses(model(**data, mode='loss'))
        loss.backward()
        losses.append((loss, [p.grad for p in model.backbone.parameters()]))
    assert_close(*losses, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@every_backbone
def test_inductor(cls):
    """The default compiler, at two sizes, in training and in testing."""
    compiled, eager = build(cls, compile=True), build(cls)
    for size in ((64, 96), (96, 128)):
        x = image(size)
        assert_close(
            maps_and_gradients(compiled, x), maps_and_gradients(eager, x), **SINGLE
        )
        with torch.no_grad():
            assert_close(compiled(x), eager(x), **SINGLE)


@every_backbone
@pytest.mark.parametrize(
    'compile, error, message',
    [
        ('inductor', ValueError, "'inductor'"),
        (None, ValueError, 'None'),
        (dict(fast=True), TypeError, 'fast'),
        (dict(backend='none'), RuntimeError, 'none'),
    ],
    ids=['string', 'none', 'option', 'backend'],
)
def test_wrong_settings(cls, compile, error, message):
    with pytest.raises(error, match=message):
        build(cls, compile=compile)
