"""Every backbone exports, traces, and compiles to one graph, if asked by config."""

import copy
import pickle

import pytest
import torch
from backbones import (
    SINGLE,
    PlainLiSANet,
    build,
    counting_backend,
    every_backbone,
    fast_for,
    image,
    maps_and_gradients,
    shallow_arch,
)
from torch.testing import assert_close

from mmattn.models import DAT, PVT, DATPlusPlus, HMaiT, IViT, LiSANet, PVTv2, ViT

# All blocks of these compile for half a minute; those left are of all kinds. H-MaiT has
# a stage with masked heads alone and one with a global head. DAT has shifted windows
# and deformable attention, DAT++ its two kinds of attention, IViT and LiSANet
# convolutions and attention. Blocks of the plain networks are alike.
TWO_STAGES = dict(embed_dims=(32, 64), depths=(1, 1))
TWO_HEADS = TWO_STAGES | dict(num_heads=(1, 2))
FEW_BLOCKS = {
    DAT: dict(arch=TWO_HEADS | dict(num_groups=(0, 1))),
    DATPlusPlus: dict(
        arch=shallow_arch(DATPlusPlus) | dict(depths=(1, 2, 1, 1)), out_indices=1
    ),
    HMaiT: dict(arch=TWO_HEADS | dict(masked_heads=(1, 1))),
    IViT: dict(arch=shallow_arch(IViT) | dict(depths=(1, 0, 1, 1)), out_indices=(0, 2)),
    LiSANet: dict(arch=TWO_STAGES | dict(mlp_ratios=(4, 4), conv_stages=1, patterns=8)),
    PVT: dict(out_indices=1),
    PVTv2: dict(out_indices=1),
    PlainLiSANet: dict(arch=shallow_arch(PlainLiSANet) | dict(depths=(1,))),
}


def build_few(cls, **kwargs):
    settings = FEW_BLOCKS.get(cls, {})
    if 'depth' in shallow_arch(cls):
        settings = dict(arch=shallow_arch(cls) | dict(depth=1))
    return build(cls, **settings, **kwargs)


of_all_kinds = fast_for(DATPlusPlus, HMaiT, IViT, LiSANet)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@fast_for(DATPlusPlus, HMaiT, LiSANet)
def test_graphs_do_not_break(cls):
    """Inference and training are one graph each, without a convolution.

    Inductor would reorder the grids before it, see `ops.common.graph_nodes`.
    """
    backend, graphs = counting_backend()
    model = build_few(cls, drop_path_rate=0.1)
    compiled, x = torch.compile(model, backend=backend), image(1, 3, 64, 64)
    with torch.no_grad():
        assert_close(compiled.eval()(x), model(x), **SINGLE)
    assert len(graphs) == 1
    with torch.autocast('cpu', torch.bfloat16):
        outs = compiled.train()(x)
    sum(out.sum() for out in outs).backward()
    assert len(graphs) == 2
    for graph in graphs:
        called = {node.target for node in graph.graph.nodes}
        assert torch.conv2d not in called
        assert torch.ops.mmattn.grid_conv2d in called


@fast_for(IViT)
def test_one_graph_serves_all_sizes(cls):
    """Compile for images of any size; a fixed side is an error."""
    backend, graphs = counting_backend()
    model = build_few(cls).double()
    eager = copy.deepcopy(model)
    model.compile(fullgraph=True, backend=backend)
    for shape in ((97, 135), (128, 160)):
        x = image(2, 3, *shape, dtype=torch.float64)
        torch._dynamo.mark_dynamic(x, (2, 3))
        actual, expected = maps_and_gradients(model, x), maps_and_gradients(eager, x)
        assert_close(actual, expected, **SINGLE)
    assert len(graphs) == 1


@fast_for(DATPlusPlus, LiSANet)
def test_exports(cls):
    model, x = build_few(cls).eval(), image(1, 3, 64, 96)
    program = torch.export.export(model, (x,))
    assert_close(program.module()(x), model(x))


@of_all_kinds
def test_traces_whether_gradients_are_on_or_not(cls, tmp_path):
    """PyTorch traces again without gradients, and compares the graphs."""
    model, x = build_few(cls).eval(), image(1, 3, 64, 96)
    assert next(model.parameters()).requires_grad
    torch.jit.trace(model, x).save(tmp_path / 'traced.pt')
    assert_close(torch.jit.load(tmp_path / 'traced.pt')(x), model(x), **SINGLE)


@pytest.mark.slow
@every_backbone
def test_inductor(cls):
    """The default compiler, at two sizes, in training and in testing."""
    compiled, eager = (build(cls, compile=c).double() for c in (True, False))
    for size in ((64, 96), (96, 128)):
        x = image(2, 3, *size, dtype=torch.float64)
        for model in (compiled, eager):
            model.zero_grad()
        actual, expected = (maps_and_gradients(m, x) for m in (compiled, eager))
        assert_close(actual, expected, **SINGLE)
        with torch.no_grad():
            assert_close(compiled(x), eager(x), **SINGLE)


@pytest.mark.slow
@every_backbone
def test_changing_sizes_compile_few_graphs(cls):
    """One for the first size and one for all others, unless a grid has few pixels.

    DAT has one more: windows fill the last map, as the first, but not those between.
    """
    backend, graphs = counting_backend()
    compiled = build(cls, compile=dict(backend=backend)).double()
    eager = build(cls).double()
    for size in ((224, 224), (256, 288), (320, 256), (224, 416)):
        x = image(2, 3, *size, dtype=torch.float64)
        assert_close(compiled(x), eager(x), **SINGLE)
    assert len(graphs) == (3 if cls is DAT else 2)


# The base class compiles and checkpoints blocks; H-MaiT checkpoints heads as well.
@pytest.mark.parametrize('cls', [HMaiT, pytest.param(ViT, marks=pytest.mark.slow)])
def test_compiled_with_checkpoints_and_frozen_parts(cls):
    settings = dict(with_cp=True, frozen_stages=1)
    options = dict(backend='eager', fullgraph=True)
    make = build_few if cls is HMaiT else build
    compiled = make(cls, compile=options, **settings).double().train()
    eager = make(cls, **settings).double().train()
    assert eager._compiled_call_impl is None
    x = image(2, 3, 64, 96, dtype=torch.float64)
    actual, expected = (maps_and_gradients(m, x) for m in (compiled, eager))
    assert_close(actual, expected, **SINGLE)


def test_names_stay_and_copies_are_compiled():
    backend, graphs = counting_backend()
    model, eager = build(ViT, compile=dict(backend='eager')), build(ViT)
    assert list(model.state_dict()) == list(eager.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._compiled_call_impl not in (None, model._compiled_call_impl)
        assert_close(other.state_dict(), model.state_dict())
    other.compile_options['backend'] = backend
    x = image(1, 3, 64, 64)
    assert_close(copy.deepcopy(other)(x), eager(x), **SINGLE)
    assert len(graphs) == 1
