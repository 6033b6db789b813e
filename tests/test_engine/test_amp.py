"""Mixed precision on the CPU: what is cast, scaled, skipped, clipped and resumed."""

import copy
import math
from functools import partial

import pytest
import torch
from mmengine.optim import OptimWrapper
from refusals import refuses
from torch import nn

from mmattn.engine import AmpOptimWrapper


def build(model, dtype=None, lr=0.1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return AmpOptimWrapper(dtype=dtype, optimizer=optimizer, **options)


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def step(wrapper, model, factor=1.0):
    x = torch.linspace(-1, 1, 8).view(2, 4)
    with wrapper.optim_context(model):
        loss = model(x).float().square().mean() * factor
    wrapper.update_params(loss)
    return loss.item()


test_what_it_does_not_take = refuses(
    partial(build, linear()),
    (dict(dtype='float8'), "one of float16, bfloat16, got 'float8'"),
    (dict(dtype=torch.float32), 'got torch.float32'),
    (dict(loss_scale='static'), "a positive number or a dict, got 'static'"),
    (dict(loss_scale=0.0), 'got 0.0'),
)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_a_step_is_that_of_float32_to_the_dtypes_precision(dtype):
    models = linear(), linear()
    wrapper = build(models[1], dtype)
    with wrapper.optim_context(models[1]):
        assert models[1](torch.ones(1, 4)).dtype == getattr(torch, dtype)
    assert models[1](torch.ones(1, 4)).dtype == torch.float32
    reference = OptimWrapper(torch.optim.SGD(models[0].parameters(), lr=0.1))
    step(reference, models[0])
    step(wrapper, models[1])
    moved = models[0].weight - linear().weight
    error = (models[1].weight - models[0].weight).norm() / moved.norm()
    assert error < 4 * torch.finfo(getattr(torch, dtype)).eps


def test_a_step_that_overflows_is_skipped_and_others_are_clipped():
    model = linear()
    wrapper = build(model, 'float16', lr=1.0, clip_grad=dict(max_norm=1e-3))
    before = [p.detach().clone() for p in model.parameters()]
    step(wrapper, model, math.nan)
    assert all(map(torch.equal, model.parameters(), before))
    step(wrapper, model)  # clipped after it is unscaled
    pairs = zip(model.parameters(), before, strict=True)
    moved = torch.cat([(p - b).flatten() for p, b in pairs])
    torch.testing.assert_close(moved.norm(), torch.tensor(1e-3))


@pytest.mark.parametrize(
    ('loss_scale', 'first', 'after_overflow'),
    [
        ('dynamic', 2**16, 2**15),
        (128.0, 128, 128),
        (dict(init_scale=8.0), 8, 4),
        (None, 1, 1),  # bfloat16, the dtype of a CPU
    ],
    ids=['dynamic', 'fixed', 'dict', 'bfloat16'],
)
def test_the_scale(loss_scale, first, after_overflow):
    model = linear()
    options = {} if loss_scale is None else dict(dtype='float16', loss_scale=loss_scale)
    wrapper = build(model, **options)
    assert wrapper.cast_dtype is (torch.float16 if options else torch.bfloat16)
    step(wrapper, model)
    assert wrapper.loss_scaler.get_scale() == first
    step(wrapper, model, math.inf)
    assert wrapper.loss_scaler.get_scale() == after_overflow


def test_the_scale_is_resumed():
    model, resumed = linear(), linear()
    wrapper = build(model, 'float16', loss_scale=dict(growth_interval=3))
    for factor in (math.inf, 1.0, 1.0):
        step(wrapper, model, factor)
    state, weights = copy.deepcopy((wrapper.state_dict(), model.state_dict()))
    again = build(resumed, 'float16', loss_scale=dict(growth_interval=3))
    resumed.load_state_dict(weights)
    again.load_state_dict(state)
    assert 'loss_scaler' in state  # loading takes nothing out of it
    assert again.loss_scaler.get_scale() == 2**15
    for one in (wrapper, again):
        step(one, model if one is wrapper else resumed)
        assert one.loss_scaler.get_scale() == 2**16  # the third good step in a row
    assert torch.equal(model.weight, resumed.weight)


@pytest.mark.parametrize(
    ('saved', 'loaded'), [(None, 'float16'), ('bfloat16', 'float16'), ('float16', None)]
)
def test_checkpoints_go_from_one_precision_to_another(saved, loaded):
    def wrap(model, dtype):
        if dtype is not None:
            return build(model, dtype)
        return OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    model = linear()
    wrapper = wrap(model, saved)
    step(wrapper, model)
    again = wrap(model, loaded)
    again.load_state_dict(wrapper.state_dict())
    buffer = again.optimizer.state[model.weight]['momentum_buffer']
    assert torch.equal(buffer, wrapper.optimizer.state[model.weight]['momentum_buffer'])
    step(again, model)
