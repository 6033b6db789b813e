"""Encoder and decoder of Deformable DETR, compiled and exported, at several sizes."""

import pytest
import torch
from backbones import counting_backend
from deformable_detr_models import (
    build_branches,
    build_decoder,
    build_encoder,
    maps,
    padding_masks,
)
from torch import nn
from torch.testing import assert_close

LEVELS = 2
# Sides that differ from each other, as equal ones are taken for one.
SIZES = ((9, 10), (5, 6)), ((12, 13), (6, 7)), ((11, 15), (3, 4))
VALID = (8, 7), (3, 4)  # of the second image; no map is smaller


class Transformer(nn.Module):
    """With one layer and one branch for each stage."""

    def __init__(self, kind, **kwargs):
        super().__init__()
        kwargs = dict(num_layers=1, num_levels=LEVELS) | kwargs
        self.encoder = build_encoder(**kwargs)
        self.decoder = build_decoder(kind, **kwargs)
        self.branches = nn.ModuleList(part[1:] for part in build_branches(kind))

    def forward(self, feats, masks=None):
        return self.decoder(self.encoder(feats, masks), masks, *self.branches)


def inputs(shapes, padded):
    return maps(shapes), padding_masks(shapes, VALID) if padded else None


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
def test_sizes_share_a_graph():
    backend, graphs = counting_backend()
    model = Transformer('refine')
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for shapes in SIZES:
        arguments = inputs(shapes, True)
        assert_close(compiled(*arguments), model(*arguments))
    assert len(graphs) == 1


def test_exported_model_takes_other_sizes():
    model, sizes = Transformer('two-stage'), torch.export.Dim.DYNAMIC
    program = torch.export.export(
        model,
        inputs(SIZES[0], False),
        dynamic_shapes=([{2: sizes, 3: sizes}] * LEVELS, None),
    ).module()
    for shapes in SIZES:
        arguments = inputs(shapes, False)
        assert_close(program(*arguments), model(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize('kind, with_cp', [('two-stage', False), ('refine', True)])
def test_training_through_inductor(kind, with_cp):
    """The default compiler and its treatment of changing sizes; two graphs at most."""
    eager, model = (Transformer(kind, with_cp=with_cp).float() for _ in range(2))
    with torch._dynamo.config.patch(error_on_recompile=False, recompile_limit=2):
        compiled = torch.compile(model, fullgraph=True)
        for shapes in SIZES:
            feats, masks = inputs(shapes, True)
            feats = [feat.float() for feat in feats]
            results = []
            for run in (eager, compiled):
                run.zero_grad()
                out = run(feats, masks)
                out.hidden_states.square().mean().backward()
                gradients = [  # None is what a compiled graph has a zero for
                    torch.zeros_like(p) if p.grad is None else p.grad
                    for p in run.parameters()
                ]
                results.append((out, gradients))
            assert_close(*results, rtol=1e-4, atol=1e-5)
