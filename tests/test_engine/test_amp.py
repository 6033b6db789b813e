"""Mixed precision on the CPU: what is cast, scaled, skipped, clipped and resumed."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip('mmengine')
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper as MMEngineAmpOptimWrapper
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from mmattn.engine import AmpOptimWrapper, Runner
from mmattn.models import IViT
from mmattn.ops import landmark_attention

DTYPES = ['float16', 'bfloat16']
ROOT = Path(__file__).parents[2]
HELA = 'configs/demo/mask_rcnn_ivit_n_hela.py'
SMALL_DETECTOR = {
    'model.backbone.arch': 'nano',
    'model.neck.in_channels': [32, 64, 160, 256],
    'model.train_cfg.rcnn.sampler.num': 16,
    'model.train_cfg.rpn_proposal.max_per_img': 32,
    'train_dataloader.batch_size': 1,
    'train_dataloader.num_workers': 0,
    'train_dataloader.persistent_workers': False,
    'param_scheduler': None,
    'default_hooks.logger': None,
    'val_cfg': None,
    'val_dataloader': None,
    'val_evaluator': None,
}

NARROW = {  # convolutions in float16 are slow on CPUs
    'model.neck.out_channels': 32,
    'model.rpn_head.in_channels': 32,
    'model.rpn_head.feat_channels': 32,
    'model.roi_head.bbox_roi_extractor.out_channels': 32,
    'model.roi_head.mask_roi_extractor.out_channels': 32,
    'model.roi_head.bbox_head.in_channels': 32,
    'model.roi_head.bbox_head.fc_out_channels': 32,
    'model.roi_head.mask_head.in_channels': 32,
    'model.roi_head.mask_head.conv_out_channels': 32,
    'model.roi_head.mask_head.num_convs': 1,
}


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


@pytest.mark.parametrize('dtype', DTYPES)
def test_it_computes_in_the_dtype_and_keeps_float32_weights(dtype):
    model = linear()
    wrapper = build(model, dtype)
    with wrapper.optim_context(model):
        assert model(torch.ones(1, 4)).dtype == getattr(torch, dtype)
    assert model(torch.ones(1, 4)).dtype == torch.float32
    before = model.weight.clone()
    step(wrapper, model)
    assert model.weight.dtype == torch.float32
    assert not torch.equal(model.weight, before)


def test_the_dtype_of_a_cpu_is_bfloat16_unless_told():
    assert build(linear()).cast_dtype is torch.bfloat16
    assert build(linear(), torch.float16).cast_dtype is torch.float16


def test_it_is_built_from_a_config():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cfg = dict(type='mmattn.AmpOptimWrapper', optimizer=optimizer, dtype='float16')
    wrapper = OPTIM_WRAPPERS.build(cfg | dict(loss_scale='dynamic'))
    assert isinstance(wrapper, MMEngineAmpOptimWrapper)
    assert type(wrapper) is AmpOptimWrapper


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(dtype='float8'), "one of float16, bfloat16, got 'float8'"),
        (dict(dtype=torch.float32), 'got torch.float32'),
        (dict(loss_scale='static'), "a positive number or a dict, got 'static'"),
        (dict(loss_scale=0.0), 'got 0.0'),
    ],
)
def test_what_it_does_not_take(options, message):
    with pytest.raises(ValueError, match=message):
        build(linear(), **options)


@pytest.mark.parametrize('dtype', DTYPES)
def test_a_step_is_that_of_float32_to_the_dtypes_precision(dtype):
    models = linear(), linear()
    reference = OptimWrapper(torch.optim.SGD(models[0].parameters(), lr=0.1))
    step(reference, models[0])
    step(build(models[1], dtype), models[1])
    moved = models[0].weight - linear().weight
    error = (models[1].weight - models[0].weight).norm() / moved.norm()
    assert error < 4 * torch.finfo(getattr(torch, dtype)).eps


def test_bfloat16_is_not_scaled():
    model = linear()
    wrapper = build(model, 'bfloat16')
    step(wrapper, model)
    assert wrapper.loss_scaler.get_scale() == 1.0


@pytest.mark.parametrize('factor', [math.inf, math.nan, 1e38])
@pytest.mark.parametrize('clip_grad', [None, dict(max_norm=1.0)], ids=['', 'clipped'])
def test_a_step_that_overflows_is_skipped_and_the_scale_halved(factor, clip_grad):
    model = linear()
    wrapper = build(model, 'float16', clip_grad=clip_grad)
    before = model.weight.clone()
    step(wrapper, model, factor)
    assert torch.equal(model.weight, before)
    assert wrapper.loss_scaler.get_scale() == 2**15
    step(wrapper, model)
    assert model.weight.isfinite().all()
    assert not torch.equal(model.weight, before)


def test_gradients_are_clipped_after_they_are_unscaled():
    model = linear()
    wrapper = build(model, 'float16', lr=1.0, clip_grad=dict(max_norm=1e-3))
    before = [p.detach().clone() for p in model.parameters()]
    step(wrapper, model)
    pairs = zip(model.parameters(), before, strict=True)
    moved = torch.cat([(p - b).flatten() for p, b in pairs])
    torch.testing.assert_close(moved.norm(), torch.tensor(1e-3))


@pytest.mark.parametrize('dtype', DTYPES)
def test_accumulation_updates_once_with_the_mean(dtype):
    model, at_once = linear(), linear()
    wrapper = build(model, dtype, accumulative_counts=2)
    before = model.weight.clone()
    step(wrapper, model)
    assert torch.equal(model.weight, before)
    step(wrapper, model)
    step(build(at_once, dtype), at_once)
    torch.testing.assert_close(model.weight, at_once.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ('loss_scale', 'first', 'after_overflow'),
    [('dynamic', 2**16, 2**15), (128.0, 128, 128), (dict(init_scale=8.0), 8, 4)],
    ids=['dynamic', 'fixed', 'dict'],
)
def test_the_scale(loss_scale, first, after_overflow):
    model = linear()
    wrapper = build(model, 'float16', loss_scale=loss_scale)
    assert wrapper.loss_scaler.get_scale() == 65536 or loss_scale != 'dynamic'
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


@pytest.mark.parametrize('saved', [None, 'bfloat16', 'float16'])
@pytest.mark.parametrize('loaded', [None, 'bfloat16', 'float16'])
def test_checkpoints_go_from_any_precision_to_any(saved, loaded):
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


@pytest.mark.parametrize('dtype', DTYPES)
def test_our_backbone_trains(dtype):
    torch.manual_seed(0)
    model = IViT('nano')
    wrapper = build(model, dtype, lr=1e-3)
    x = torch.randn(1, 3, 64, 64)
    for _ in range(2):
        with wrapper.optim_context(model):
            loss = sum(out.float().square().mean() for out in model(x))
        assert loss.isfinite()
        wrapper.update_params(loss)
    assert all(p.isfinite().all() for p in model.parameters())
    assert wrapper.loss_scaler.get_scale() in (1.0, 2**16)  # nothing was skipped


@pytest.mark.parametrize('dtype', DTYPES)
def test_our_operator_takes_the_dtype(dtype):
    torch.manual_seed(0)
    cast = getattr(torch, dtype)
    q, k, v = torch.randn(3, 2, 49, 4, 8).unbind()
    a, b = torch.randn(2, 2, 4, 4, 8).unbind()
    w1, w2 = torch.randn(2, 4, 4).unbind()
    inputs = [t.to(cast).requires_grad_() for t in (q, k, v, a, b, w1, w2)]
    with torch.autocast('cpu', cast):
        out = landmark_attention(*inputs)
    assert out.dtype == cast
    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = landmark_attention(*exact, backend='reference')
    out.float().sum().backward()
    expected.sum().backward()
    eps = torch.finfo(cast).eps
    assert (out - expected).norm() < 4 * eps * expected.norm()
    for value, reference in zip(inputs, exact, strict=True):
        error = (value.grad - reference.grad).norm()
        assert error < 8 * eps * reference.grad.norm()


class Watch(Hook):
    """The losses of a run."""

    def __init__(self):
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.losses.append(outputs['loss'].item())


def train(config, folder, transform, options) -> tuple[Runner, list[float]]:
    """A run of a config with one transform as its augmentation, and the losses."""
    cfg = Config.fromfile(ROOT / config)
    cfg.merge_from_dict(SMALL_DETECTOR | {'work_dir': str(folder)} | options)
    cfg.train_dataloader.dataset.pipeline[2:-1] = [transform]
    runner = Runner.from_cfg(cfg)
    watch = Watch()
    runner.register_hook(watch)
    runner.train()
    return runner, watch.losses


@pytest.mark.parametrize('dtype', DTYPES)
def test_a_detector_trains_and_its_scale_is_resumed(tmp_path, monkeypatch, dtype):
    """Proposals, NMS and RoIAlign included, which are torchvision's here."""
    pytest.importorskip('mmdet')
    monkeypatch.chdir(tmp_path)
    from mmattn.datasets import toy

    toy.make_coco(tmp_path / 'data/coco')
    resize = dict(type='Resize', scale=(64, 64), keep_ratio=False)
    options = NARROW | {
        'train_cfg.max_epochs': 1,
        'optim_wrapper.type': 'mmattn.AmpOptimWrapper',
        'optim_wrapper.dtype': dtype,
        'optim_wrapper.loss_scale': dict(init_scale=64.0, growth_interval=3),
        'randomness': dict(seed=0),
    }
    config = 'configs/mask_rcnn/ivit_t_3x_coco.py'
    first, losses = train(config, tmp_path / 'run', resize, options)
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
    options |= {'train_cfg.max_epochs': 2, 'resume': True}
    second, losses = train(config, tmp_path / 'run', resize, options)
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
    weights = second.model.state_dict()
    assert all(value.isfinite().all() for value in weights.values())
    before, after = first.model.state_dict(), weights
    assert any(not torch.equal(before[name], after[name]) for name in before)
    # The third good step in a row is the first after the resumption.
    scale = second.optim_wrapper.loss_scaler.get_scale()
    assert scale == (128.0 if dtype == 'float16' else 1.0)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', DTYPES)
def test_200_steps_on_hela(tmp_path, monkeypatch, dtype):
    """At a quarter of the images' sides: convolutions in float16 are slow on CPUs."""
    pytest.importorskip('mmdet')
    if not (ROOT / 'data/hela/dataset.json').exists():
        pytest.skip('needs data/hela: python tools/datasets/hela.py')
    monkeypatch.chdir(ROOT)
    options = {
        'model.train_cfg.rcnn.sampler.num': 64,
        'model.train_cfg.rpn_proposal.max_per_img': 128,
        'train_cfg.max_iters': 200,
        'optim_wrapper.type': 'mmattn.AmpOptimWrapper',
        'optim_wrapper.dtype': dtype,
    }
    crop = dict(type='RandomCrop', crop_size=(64, 64), allow_negative_crop=True)
    runner, losses = train(HELA, tmp_path, crop, options)
    assert all(map(math.isfinite, losses))
    assert all(p.isfinite().all() for p in runner.model.parameters())
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])
