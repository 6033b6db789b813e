"""Every registered backbone compiles to one graph, and exports."""

import copy

import pytest
import torch
from test_backbones import (
    BACKBONES,
    SINGLE,
    DistilledMaiT,
    MaskedViT,
    PlainLiSANet,
    build,
    gradients,
    image,
    maps_and_gradients,
    shallow_arch,
)
from torch.testing import assert_close

from mmattn.models import (
    DAT,
    PVT,
    DATPlusPlus,
    HMaiT,
    IViT,
    LiSANet,
    MaiT,
    MaskedCaiT,
    PVTv2,
    ViT,
)

# All blocks of these compile for half a minute; those left are of all kinds. H-MaiT has
# a stage with masked heads alone and one with a global head. DAT has shifted windows
# and deformable attention, DAT++ its two kinds of attention, IViT and LiSANet
# convolutions and attention. Blocks of the plain networks are alike.
FEW_BLOCKS = {
    DAT: dict(
        arch=dict(
            embed_dims=(32, 64), depths=(1, 1), num_heads=(1, 2), num_groups=(0, 1)
        )
    ),
    DATPlusPlus: dict(
        arch=shallow_arch(DATPlusPlus) | dict(depths=(1, 2, 1, 1)), out_indices=1
    ),
    HMaiT: dict(
        arch=dict(
            embed_dims=(32, 64), depths=(1, 1), num_heads=(1, 2), masked_heads=(1, 1)
        )
    ),
    IViT: dict(arch=shallow_arch(IViT) | dict(depths=(1, 0, 1, 1)), out_indices=(0, 2)),
    LiSANet: dict(
        arch=dict(
            embed_dims=(32, 64),
            depths=(1, 1),
            mlp_ratios=(4, 4),
            conv_stages=1,
            patterns=8,
        )
    ),
    PVT: dict(out_indices=1),
    PVTv2: dict(out_indices=1),
    PlainLiSANet: dict(arch=shallow_arch(PlainLiSANet) | dict(depths=(1,))),
    **{
        cls: dict(arch=shallow_arch(cls) | dict(depth=1))
        for cls in (DistilledMaiT, MaiT, MaskedCaiT, MaskedViT, ViT)
    },
}
COMPILED_SLOWLY = DistilledMaiT, MaskedViT  # MaiT, masked CaiT and ViT have their parts
COMPILED = [
    pytest.param(
        cls,
        id=cls.__name__,
        marks=pytest.mark.slow if cls in COMPILED_SLOWLY else (),
    )
    for cls in BACKBONES
]
SHALLOW_AND_SMALLEST = [
    pytest.param(cls, kwargs, id=f'{cls.__name__}-{name}', marks=marks)
    for cls in BACKBONES
    for name, kwargs, marks in (
        (
            'shallow',
            FEW_BLOCKS.get(cls, {}),
            pytest.mark.slow if cls in COMPILED_SLOWLY else (),
        ),
        (
            next(iter(cls.arch_zoo)),
            dict(arch=next(iter(cls.arch_zoo))),
            pytest.mark.slow,
        ),
    )
]


@pytest.mark.parametrize('cls', COMPILED)
def test_one_graph_serves_all_sizes(cls):
    """Compile for images of any size; a fixed side is an error."""
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = build(cls, **FEW_BLOCKS.get(cls, {})).double()
    eager = copy.deepcopy(model)
    model.compile(fullgraph=True, backend=backend)
    for shape in ((97, 135), (128, 160)):
        x = image(2, 3, *shape, dtype=torch.float64)
        torch._dynamo.mark_dynamic(x, (2, 3))
        actual, expected = maps_and_gradients(model, x), maps_and_gradients(eager, x)
        assert_close(actual, expected, **SINGLE)
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize('compiler', ['eager', 'aot_eager'])
@pytest.mark.parametrize('cls, kwargs', SHALLOW_AND_SMALLEST)
def test_compiles_to_one_graph(cls, kwargs, compiler):
    """Compile for inference at one size, then for training at another.

    The operators' own tests trace each, forward and backward, with AOT autograd.
    """
    torch.compiler.reset()
    model = build(cls, **kwargs).double()
    compiled = torch.compile(model, fullgraph=True, backend=compiler)
    with torch.no_grad():
        x = image(1, 3, 33, 47, dtype=torch.float64)
        assert_close(compiled(x), model(x), **SINGLE)
    x = image(2, 3, 64, 96, dtype=torch.float64)
    expected = gradients(copy.deepcopy(model), x)
    gradients(compiled, x)
    actual = {name: p.grad for name, p in model.named_parameters()}
    assert_close(actual, expected, **SINGLE)


@pytest.mark.parametrize('cls, kwargs', SHALLOW_AND_SMALLEST)
def test_exports(cls, kwargs):
    model, x = build(cls, **kwargs).eval(), image(1, 3, 64, 96)
    program = torch.export.export(model, (x,))
    assert_close(program.module()(x), model(x))
