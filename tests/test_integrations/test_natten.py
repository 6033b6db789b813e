"""NATTEN's function and transformers' DiNAT, beside one window for each query."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mmattn
from mmattn.integrations.natten import na2d


def neighbors(position, side, K, dilation):
    """Return the K nearest pixels that are multiples of the dilation away."""
    pixels = [p for p in range(side) if (p - position) % dilation == 0]
    pixels.sort(key=lambda p: (abs(p - position), p))
    return sorted(pixels[:K])


def one_window_for_each_query(q, k, v, rpb, K, dilation, scale):
    """Attend in loops, with the dilation (d_y, d_x)."""
    out = torch.empty_like(q)
    H, W = q.shape[1:3]
    for y in range(H):
        ys = torch.tensor(neighbors(y, H, K, dilation[0]))
        rows = K - 1 + (ys - y) // dilation[0]
        for x in range(W):
            xs = torch.tensor(neighbors(x, W, K, dilation[1]))
            columns = K - 1 + (xs - x) // dilation[1]
            seen = slice(None), ys[:, None], xs
            scores = scale * torch.einsum('bmd,bijmd->bmij', q[:, y, x], k[seen])
            scores = scores + rpb[:, rows[:, None], columns]
            weights = scores.flatten(2).softmax(-1).view_as(scores)
            out[:, y, x] = torch.einsum('bmij,bijmd->bmd', weights, v[seen])
    return out


def inputs(H, W, K, heads=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(K)

    def random(*shape):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(dtype).requires_grad_()

    side = 2 * K - 1
    maps = [random(2, H, W, heads, 4) for _ in range(3)]
    return [*maps, random(heads, side, side)]


def out_and_grads(function, tensors):
    out = function(*tensors)
    slope = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad((out * slope).sum(), tensors)]


@pytest.mark.parametrize(
    'H, W, K, dilation',
    [
        (7, 5, 3, 1),
        (6, 9, 3, 2),  # whole classes below each other, two sizes beside each other
        (11, 13, 3, 3),
        (8, 15, 3, (2, 5)),
        (13, 12, 5, (1, 2)),
        (15, 14, 7, 2),  # as many rows as the window, and one more in some classes
        (27, 13, 13, (2, 1)),
        (19, 10, 9, (2, 1)),
        (11, 12, 11, 1),
    ],
)
def test_function_is_one_window_for_each_query(H, W, K, dilation):
    pair = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    exact = inputs(H, W, K)
    expected = out_and_grads(
        lambda *x: one_window_for_each_query(*x, K, pair, 0.3), exact
    )
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        found = out_and_grads(
            lambda q, k, v, rpb: na2d(q, k, v, K, 1, dilation, scale=0.3, rpb=rpb),
            inputs(H, W, K, dtype=dtype),
        )
        for actual, value in zip(found, expected, strict=True):
            limit = tolerance * value.abs().max()
            assert (actual - value).abs().max() <= limit


def test_defaults_are_those_of_natten():
    q, k, v, rpb = inputs(9, 8, 3)
    expected = one_window_for_each_query(q, k, v, 0 * rpb, 3, (2, 2), 4**-0.5)
    assert_close(na2d(q, k, v, (3, 3), dilation=(2, 2)), expected)


@pytest.mark.parametrize(
    'arguments, message',
    [
        (dict(kernel_size=3, is_causal=(False, True)), 'causal attention is not supp'),
        (dict(kernel_size=3, stride=2), '`stride` must be 1, got 2'),
        (dict(kernel_size=4), '`kernel_size` must be odd.* got 4'),
        (dict(kernel_size=(3, 5)), 'got \\(3, 5\\)'),
        (dict(kernel_size=3, dilation=0), '`dilation` must be .* got 0'),
        (dict(kernel_size=3, dilation=(4, 1)), '9x8 map is smaller than a 3x3 window'),
        (dict(kernel_size=3, dilation=(1, 3)), '9x8 map is smaller than a 3x3 window'),
        (dict(kernel_size=5, rpb=torch.zeros(2, 5, 5)), '`rpb` must have shape'),
        (dict(kernel_size=3, backend='cutlass-fna'), 'cutlass-fna'),
    ],
)
def test_what_is_refused(arguments, message):
    q, k, v, _ = inputs(9, 8, 3)
    with pytest.raises(ValueError, match=message):
        na2d(q, k, v, **arguments)


def test_compile_and_export():
    class Module(nn.Module):
        def forward(self, *x):
            return na2d(*x, 3, dilation=2)

    tensors = inputs(7, 6, 3)[:3]
    expected = Module()(*tensors)
    compiled = torch.compile(Module(), backend='aot_eager', fullgraph=True)
    assert_close(compiled(*tensors), expected)
    program = torch.export.export(Module(), tuple(tensors))
    assert_close(program.module()(*tensors), expected)


@pytest.fixture
def stage():
    """A stage of DiNAT; the whole model refuses to be built without natten."""
    dinat = pytest.importorskip('transformers.models.dinat.modeling_dinat')
    config = dinat.DinatConfig(kernel_size=3, layer_scale_init_value=1.0)
    torch.manual_seed(0)
    sizes = dict(dim=8, depth=2, num_heads=2, dilations=[1, 2], downsample=None)
    stage = dinat.DinatStage(config, **sizes, drop_path_rate=[0.0, 0.0]).eval()
    for parameter in stage.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return stage


class Windows(nn.Module):
    """DiNAT's attention in loops, in float64."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, output_attentions):
        module = self.module
        q, k, v = (
            layer(x).unflatten(-1, (2, 4))
            for layer in (module.query, module.key, module.value)
        )
        dilation = module.dilation, module.dilation
        out = one_window_for_each_query(q, k, v, module.rpb, 3, dilation, 0.5)
        return (out.flatten(3),)


def test_dinat_attends_to_dilated_neighborhoods(stage):
    x = torch.randn(2, 7, 8, 8)
    keys = list(stage.state_dict())
    report = mmattn.accelerate(stage)
    assert list(report.replaced) == [f'layers.{i}.attention.self' for i in range(2)]
    assert not report.kept and list(stage.state_dict()) == keys
    parameters = dict(stage.named_parameters())
    found = out_and_grads(lambda *_: stage(x)[0], list(parameters.values()))
    with pytest.raises(ValueError, match='output_attentions=True is not supported'):
        stage(x, output_attentions=True)
    assert mmattn.restore(stage) == 2
    stage.double()
    for layer in stage.layers:
        layer.attention.self = Windows(layer.attention.self)
    expected = out_and_grads(lambda *_: stage(x.double())[0], list(stage.parameters()))
    assert len(found) == len(expected) > 30
    for actual, value in zip(found, expected, strict=True):
        # A bias of keys has no gradient but rounding.
        assert (actual - value).abs().max() <= 1e-5 * value.abs().max() + 1e-5


def test_dropout_of_dinat_is_kept(stage):
    stage.layers[0].attention.self.dropout.p = 0.1
    report = mmattn.accelerate(stage)
    assert 'dropout 0.1' in report.kept['layers.0.attention.self']
    assert list(report.replaced) == ['layers.1.attention.self']


class NeighborhoodAttention2D(nn.Module):
    """The parameters and attributes of `natten.NeighborhoodAttention2D`."""

    def __init__(self, dilation, is_causal=(False, False)):
        super().__init__()
        self.num_heads, self.scale = 2, 0.3
        self.kernel_size, self.stride, self.dilation = (3, 3), (1, 1), dilation
        self.is_causal = is_causal
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.proj_drop = nn.Dropout(0.0)


NeighborhoodAttention2D.__module__ = 'natten.modules'


def test_module_of_natten_runs_on_ours():
    torch.manual_seed(0)
    causal = NeighborhoodAttention2D((1, 1), (True, False))
    modules = dict(dilated=NeighborhoodAttention2D((2, 1)), causal=causal)
    model = nn.ModuleDict(modules).double()
    report = mmattn.accelerate(model)
    assert report.replaced == {'dilated': 'natten.modules.NeighborhoodAttention2D'}
    assert 'causal attention is not supported' in report.kept['causal']
    x = torch.randn(2, 7, 5, 8, dtype=torch.float64)
    module = model['dilated']
    q, k, v = module.qkv(x).view(2, 7, 5, 3, 2, 4).permute(3, 0, 1, 2, 4, 5)
    none = torch.zeros(2, 5, 5, dtype=torch.float64)
    out = one_window_for_each_query(q, k, v, none, 3, (2, 1), 0.3)
    assert_close(module(x), module.proj(out.flatten(3)))
