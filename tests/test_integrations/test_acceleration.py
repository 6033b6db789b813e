import copy
import importlib
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mmattn
from mmattn.integrations.accelerated import (
    KNOWN,
    PROBE_LEVELS,
    Attention,
    SamplingFunction,
)

transformers = pytest.importorskip('transformers')

DECODER = dict(n_levels=3, n_points=4, offset_scale=0.5, method='default')
DECODER = {f'decoder_{name}': value for name, value in DECODER.items()}
CONFIG = dict(d_model=16, decoder_attention_heads=2, num_feature_levels=3)
CONFIG = SimpleNamespace(**CONFIG, **DECODER)
UNEQUAL = SimpleNamespace(**{**vars(CONFIG), 'decoder_n_points': [3, 6, 1]})
IN_TRANSFORMERS = [
    path
    for path in KNOWN
    if path.startswith('transformers') and 'dinat' not in path  # in test_natten.py
]
IMAGE = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def build(path, config=CONFIG):
    module, name = path.rsplit('.', 1)
    cls = getattr(importlib.import_module(module), name)
    if name == 'MultiScaleDeformableAttention':
        return cls()
    if issubclass(KNOWN[path], Attention) and 'rt_detr' not in path:
        return cls(16, 2, n_levels=3, n_points=4)
    return cls(config)


def deformable_detr(**settings):
    sizes = dict(embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4)
    resnet = transformers.ResNetConfig(
        **sizes, layer_type='basic', out_indices=[2, 3, 4]
    )
    settings |= dict(use_timm_backbone=False, backbone=None, backbone_config=resnet)
    settings |= dict(d_model=32, num_queries=7, num_labels=3)
    settings |= dict(encoder_layers=1, encoder_ffn_dim=16, encoder_attention_heads=2)
    settings |= dict(decoder_layers=2, decoder_ffn_dim=16, decoder_attention_heads=2)
    config = transformers.DeformableDetrConfig(**settings)
    torch.manual_seed(0)
    model = transformers.DeformableDetrForObjectDetection(config).eval()
    for parameter in model.model.parameters():  # offsets begin at zero
        nn.init.uniform_(parameter, -0.3, 0.3)
    return model


def arguments_of(path):
    torch.manual_seed(0)
    levels = PROBE_LEVELS[:3]
    pixels = sum(height * width for height, width in levels)
    arguments = dict(
        hidden_states=torch.randn(2, 5, 16),
        attention_mask=torch.rand(2, pixels) > 0.5,
        encoder_hidden_states=torch.randn(2, pixels, 16),
        position_embeddings=torch.randn(2, 5, 16),
        reference_points=torch.rand(2, 5, 1, 4),
        spatial_shapes=torch.tensor(levels),
        spatial_shapes_list=list(levels),
        level_start_index=None,
    )
    if 'mask2former' in path:
        del arguments['spatial_shapes']
    return arguments


def outputs_and_grads(module, forward):
    module.zero_grad()
    out = forward(module)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out] + [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    'path, config',
    [(path, CONFIG) for path in IN_TRANSFORMERS]
    + [(path, UNEQUAL) for path in IN_TRANSFORMERS if KNOWN[path] is SamplingFunction],
    ids=lambda value: value.split('.')[-1] if isinstance(value, str) else '',
)
def test_every_known_class_is_replaced(path, config):
    module = nn.ModuleDict(dict(attention=build(path, config)))
    theirs = type(module.attention)
    keys = list(module.state_dict())
    report = mmattn.accelerate(module)
    assert report.replaced == {'attention': path}, report
    assert isinstance(module.attention, theirs) and type(module.attention) is not theirs
    assert list(module.state_dict()) == keys
    assert mmattn.restore(module) == 1
    assert type(module.attention) is theirs
    pickle.dumps(module)


def test_a_detector_computes_the_same_with_gradients():
    model = deformable_detr()

    def logits(model):
        return model(IMAGE).pred_boxes

    theirs = outputs_and_grads(model, logits)
    report = mmattn.accelerate(model)
    assert len(report.replaced) == 3 and not report.kept
    ours = outputs_and_grads(model, logits)
    assert len(ours) == len(theirs) > 50
    for actual, expected in zip(ours, theirs, strict=True):
        # A bias of keys has no gradient but rounding.
        assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max() + 1e-9
    assert 'runs on mmattn already' in str(mmattn.accelerate(model))
    twin = copy.deepcopy(model)
    assert mmattn.restore(twin) == 3 and mmattn.restore(model) == 3


@pytest.mark.parametrize(
    'path', [path for path in IN_TRANSFORMERS if issubclass(KNOWN[path], Attention)]
)
def test_masks_and_positions(path):
    module = build(path)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -1, 1)
    arguments = arguments_of(path)
    expected = module(**arguments)
    mmattn.accelerate(module)
    assert_close(module(**arguments), expected, rtol=1e-5, atol=1e-5)


def test_what_is_kept_and_why():
    class MyDeformableAttention(nn.Module):
        pass

    discrete = SimpleNamespace(**{**vars(CONFIG), 'decoder_method': 'discrete'})
    fine = next(path for path in IN_TRANSFORMERS if 'd_fine' in path)
    scaled = SimpleNamespace(**{**vars(CONFIG), 'decoder_offset_scale': 0.7})
    v2 = next(path for path in IN_TRANSFORMERS if 'rt_detr_v2' in path)
    modules = dict(discrete=build(fine, discrete), scaled=build(v2, scaled))
    modules |= dict(unknown=MyDeformableAttention(), meta=build(v2).to('meta'))
    model = nn.ModuleDict(modules)
    for parameter in model['scaled'].parameters():  # they hide a difference
        nn.init.zeros_(parameter)
    report = mmattn.accelerate(model)
    assert not report.replaced
    assert "'discrete', not bilinear" in report.kept['discrete']
    assert 'computes something else' in report.kept['scaled']
    assert 'not known' in report.kept['unknown']
    assert 'could not be tried' in report.kept['meta']
    with pytest.raises(ValueError, match='torch.nn.Module, got .*dict'):
        mmattn.accelerate({})


def test_probes_leave_random_numbers_and_weights_alone():
    model = deformable_detr()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    mmattn.accelerate(model)
    assert torch.rand(()) == expected
    assert all(torch.equal(x, before[k]) for k, x in model.state_dict().items())


def test_attentions_are_still_recorded():
    model = deformable_detr()
    expected = model(IMAGE, output_attentions=True)
    mmattn.accelerate(model)
    found = model(IMAGE, output_attentions=True)
    assert_close(found.encoder_attentions, expected.encoder_attentions)


def test_compile_and_export():
    path = next(path for path in IN_TRANSFORMERS if 'rt_detr_v2' in path)
    module = build(path)
    arguments = arguments_of(path)
    mmattn.accelerate(module)
    expected = module(**arguments)
    compiled = torch.compile(module, backend='aot_eager', fullgraph=True)
    assert_close(compiled(**arguments), expected)
    program = torch.export.export(module, (), arguments)
    assert_close(program.module()(**arguments), expected)
    assert 'ms_deform_attn' in program.graph_module.code
