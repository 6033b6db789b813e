"""LiSANet: stages, kernels and their grids, checkpoints at other sizes, mixers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from mmattn.engine import LayerDecayOptimWrapperConstructor
from mmattn.models import LiSANet, PooledMLP
from mmattn.models.backbones.lisanet import MIXERS
from mmattn.models.layers import (
    SeparableConv,
    StructureAwareAttention,
    undecayed_names,
)

HYBRID = dict(
    embed_dims=(16, 32, 48, 32),
    depths=(1, 1, 2, 1),
    mlp_ratios=(2, 2, 2, 2),
    conv_stages=2,
    patterns=3,
)
PYRAMID = dict(HYBRID, conv_stages=0)
PLAIN = dict(embed_dims=(32,), depths=(2,), mlp_ratios=(2,), conv_stages=0, patterns=3)
ARCHS = {'hybrid': HYBRID, 'pyramid': PYRAMID, 'plain': PLAIN}
MILLIONS = {  # with the classifier; the reading that is nearest to the paper's tables
    'isotropic': 6.362,
    'small': 24.71,
    'base': 50.58,
    'hybrid-small': 23.98,
    'hybrid-base': 49.96,
}

every_arch = pytest.mark.parametrize('arch', ARCHS.values(), ids=ARCHS)


def build(arch=HYBRID, **kwargs):
    torch.manual_seed(0)
    return LiSANet(arch, **kwargs).eval()


def mixers(model, kind=StructureAwareAttention):
    return [m for m in model.modules() if isinstance(m, kind)]


@pytest.mark.parametrize('arch', MILLIONS)
def test_parameters(arch):
    """The paper prints whole millions for the pyramids, which leaves biases open."""
    plain = arch == 'isotropic'
    C = LiSANet.arch_zoo[arch]['embed_dims'][-1]
    with torch.device('meta'):
        parts = [LiSANet(arch, out_norm=plain)]
        if plain:
            parts.append(nn.Linear(C, 1000))
        else:  # the last map alone, which the neck norms
            parts += [PooledMLP(C), nn.Linear(4 * C, 1000)]
    millions = sum(p.numel() for part in parts for p in part.parameters()) / 1e6
    assert millions == pytest.approx(MILLIONS[arch], rel=1e-4 if plain else 5e-4)


@pytest.mark.parametrize('arch', LiSANet.arch_zoo)
def test_presets(arch):
    with torch.device('meta'):
        model = LiSANet(arch)
    preset = LiSANet.arch_zoo[arch]
    strides = (16,) if arch == 'isotropic' else (4, 8, 16, 32)
    assert [len(stage.blocks) for stage in model.stages] == list(preset['depths'])
    for stage, blocks in enumerate(stage.blocks for stage in model.stages):
        channels, side = preset['embed_dims'][stage], 224 // strides[stage]
        for block in blocks:
            if stage < (2 if arch.startswith('hybrid') else 0):
                assert isinstance(block.attn, SeparableConv)
                assert block.attn.dwconv.kernel_size == (7, 7)
                continue
            K = 16 if arch == 'isotropic' else 8
            assert block.attn.num_heads == channels / 16
            assert block.attn.w_a.shape == (16, K, side, side)
            assert block.attn.w_b.shape == (K, side, side)
            assert block.attn.bias.shape == (16, K)
            assert block.attn.proj.bias is None


def test_kernels_decay_and_offsets_do_not():
    """Kernels are weights of convolutions, as the filters of GFNet."""
    names = undecayed_names(build(PLAIN))
    assert names == {'stem.pos_embed'}
    bias = build(PLAIN).stages[0].blocks[0].attn.bias
    assert bias.dim() == 2, 'left to the rule of optimizers that biases do not decay'


@pytest.mark.parametrize('mixer', MIXERS)
def test_tables_decay_unless_they_are_added_to_scores(mixer):
    """Tables of equations 9 to 11 multiply, as the kernels of a convolution do."""
    model = build(PLAIN, mixer=mixer, img_size=64)
    spared = {'stem.pos_embed'}
    if mixer in ('self_attention_rpe', 'self_attention_rpes'):
        spared |= {f'stages.0.blocks.{i}.attn.table' for i in range(2)}
    assert undecayed_names(model) == spared


@pytest.mark.parametrize('img_size', [96, (64, 100)], ids=str)
def test_grids_of_an_image_size(img_size):
    sides = (img_size,) * 2 if isinstance(img_size, int) else img_size
    model = build(PYRAMID, img_size=img_size)
    outs = model(torch.randn(1, 3, *sides))
    grids = [stage.blocks[0].attn.grid for stage in model.stages]
    assert grids == [tuple(out.shape[-2:]) for out in outs]
    plain = build(PLAIN, img_size=img_size)
    assert plain.stages[0].blocks[0].attn.grid == plain.stem.grid_size
    assert plain(torch.randn(1, 3, *sides))[0].shape[-2:] == plain.stem.grid_size


@every_arch
@pytest.mark.parametrize('resize', ['zero_embed', 'stretch', 'spectral', 'gfnet'])
@pytest.mark.parametrize('size', [(96, 96), (128, 160), (37, 50)], ids=str)
def test_a_checkpoint_of_another_size_is_the_network_of_that_size(arch, resize, size):
    """Kernels resized on load equal kernels resized at run time."""
    small = build(arch, img_size=64, kernel_resize=resize).double()
    other = build(arch, img_size=size, kernel_resize=resize).double()
    for param in small.parameters():
        nn.init.normal_(param, std=0.2)
    other.load_state_dict(small.state_dict())
    x = torch.randn(1, 3, *size, dtype=torch.float64)
    assert_close(other(x), small(x))
    with torch.no_grad():
        assert_close(other(x), small(x))


@pytest.mark.parametrize('domain', ['spatial', 'frequency'])
def test_spectra_have_the_parameters_that_the_paper_prints_at_384(domain):
    """7.82 M in its Table 13: 24 x 13 complex numbers a kernel, not 24 x 24 real."""
    with torch.device('meta'):
        model = LiSANet(
            'isotropic', img_size=384, kernel_resize='gfnet', kernel_domain=domain
        )
    count = sum(p.numel() for p in model.parameters()) + 192 * 1000 + 1000
    assert count == {'spatial': 7_675_432, 'frequency': 7_832_104}[domain]


def test_spectra_decay_as_kernels_do():
    def decays(domain):
        model = build(PLAIN, kernel_resize='gfnet', kernel_domain=domain)
        optimizer = dict(type='AdamW', lr=1.0, weight_decay=0.1)
        wrapper = LayerDecayOptimWrapperConstructor(
            dict(type='OptimWrapper', optimizer=optimizer)
        )(model)
        names = {id(p): name for name, p in model.named_parameters()}
        return {
            names[id(p)]: group['weight_decay']
            for group in wrapper.optimizer.param_groups
            for p in group['params']
        }

    spatial, frequency = decays('spatial'), decays('frequency')
    assert spatial == frequency
    assert (
        frequency['stages.0.blocks.0.attn.w_a']
        == frequency['stages.0.blocks.0.attn.w_b']
        == 0.1
    )


@every_arch
@pytest.mark.parametrize('size', [(64, 64), (96, 96), (128, 160)], ids=str)
def test_spatial_kernels_load_as_spectra(arch, size):
    """A network of 64 pixels becomes one with half-spectra for its size."""
    small = build(arch, img_size=64, kernel_resize='gfnet').double()
    other = build(
        arch, img_size=size, kernel_resize='gfnet', kernel_domain='frequency'
    ).double()
    for param in small.parameters():
        nn.init.normal_(param, std=0.2)
    other.load_state_dict(small.state_dict())
    x = torch.randn(1, 3, *size, dtype=torch.float64)
    assert_close(other(x), small(x))


def test_224_to_384_keeps_every_tap():
    small, large = build('hybrid-nano'), build('hybrid-nano', img_size=384)
    large.load_state_dict(small.state_dict())
    for ours, theirs in zip(mixers(small), mixers(large), strict=True):
        assert ours.grid in ((14, 14), (7, 7)) and theirs.grid in ((24, 24), (12, 12))
        spectra = zip(
            ours.spectra(theirs.grid), theirs.spectra(theirs.grid), strict=True
        )
        assert all(torch.equal(a, b) for a, b in spectra)


@every_arch
def test_evaluation_is_the_same_with_kept_spectra(arch):
    """In a changing order of sizes, as a detector sees them."""
    model = build(arch, cache_size=2).double()
    for size in ((64, 96), (50, 37), (64, 96), (96, 64), (64, 96)):
        x = torch.randn(1, 3, *size, dtype=torch.float64)
        with torch.no_grad():
            outs = model(x)
        assert_close(outs, model(x))
    assert all(0 < len(mixer.cache) <= 2 for mixer in mixers(model))


@pytest.mark.parametrize('arch', ['hybrid-nano', 'isotropic'])
def test_zero_padding_does_not_blow_up_gradients(arch):
    """Detectors pad images with zeros; a norm of exact zeros multiplies by 1000."""
    model = build(arch)
    images = torch.randn(2, 3, 64, 64)
    half, whole = images.clone(), images.clone()
    half[1, :, 32:] = 0
    whole[1] = 0
    norms = []
    for x in (images, half, whole):
        model.zero_grad()
        sum((out * out.detach().cos()).sum() for out in model(x)).backward()
        grads = [p.grad.norm() for p in model.parameters()]
        norms.append(torch.stack(grads).norm())
    assert max(norms) < 10 * norms[0]


@pytest.mark.parametrize('shape', [(33, 47), (5, 70)], ids=str)
def test_plain_network_pads_to_whole_patches(shape):
    model = build(PLAIN)
    x = torch.randn(1, 3, *shape)
    H, W = (-(-side // 16) * 16 for side in shape)
    padded = F.pad(x, (0, W - shape[1], 0, H - shape[0]))
    assert_close(model(x), model(padded))


@pytest.mark.parametrize('mixer', ['lisa', *MIXERS])
def test_mixers(mixer):
    model = build(PLAIN, mixer=mixer, img_size=64, patterns=2, local_kernel=3)
    other = build(PLAIN, mixer=mixer, img_size=96, patterns=2, local_kernel=3)
    other.load_state_dict(model.state_dict())
    kinds = {type(block.attn) for block in model.stages[0].blocks}
    assert (kinds == {StructureAwareAttention}) == (mixer == 'lisa')
    for size in ((64, 64), (40, 90)):
        outs = model(torch.randn(2, 3, *size))
        assert outs[0].isfinite().all()
    outs[0].square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_options_reach_the_attention():
    model = build(
        patterns=5,
        qkv_bias=False,
        proj_bias=True,
        kernel_resize='stretch',
        fft_dims=1,
        cache_size=3,
        backend='reference',
        activation='star_relu',
    )
    for mixer in mixers(model):
        assert mixer.w_b.shape[0] == 5 and len(mixer.grid) == 1
        assert mixer.qkv.bias is None and mixer.proj.bias is not None
        assert mixer.kernel_resize == 'stretch' and mixer.cache.size == 3
        assert mixer.backend == 'reference'
    assert not mixers(model, nn.GELU) and mixers(build(), nn.GELU)
    local = build(PLAIN, mixer='local', local_kernel=3).stages[0].blocks[0].attn
    assert local.w_a.shape[-2:] == (3, 3)


@pytest.mark.parametrize('out_indices', [None, (1, 3), 2, -1], ids=str)
def test_maps(out_indices):
    model = build(out_indices=out_indices)
    outs = model(torch.randn(1, 3, 64, 96))
    indices = {None: (0, 1, 2, 3), 2: (2,), -1: (3,)}.get(out_indices, out_indices)
    assert [tuple(out.shape[1:]) for out in outs] == [
        (HYBRID['embed_dims'][i], 16 >> i, 24 >> i) for i in indices
    ]
    for out in outs:  # a fresh norm ends each map
        assert_close(out.mean(1), torch.zeros(out[:, 0].shape), atol=1e-5, rtol=0)
    raw = build(out_indices=out_indices, out_norm=False)(torch.randn(1, 3, 64, 96))
    assert all(out.mean(1).abs().max() > 1e-4 for out in raw)


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(mixer='sa_eq9'), "'sa_eq9'"),
        (dict(arch=PLAIN, mixer='softmax'), "'softmax'"),
        (dict(activation='relu'), "'relu'"),
        (dict(patterns=0), 'got 0'),
        (dict(kernel_resize='nearest'), "'nearest'"),
        (dict(kernel_domain='frequency'), "requires .*'gfnet', got 'zero_embed'"),
        (dict(out_indices=(1, 0)), 'ascend'),
        (dict(arch=dict(HYBRID, embed_dims=(16, 32, 40, 48))), '40'),
    ],
    ids=lambda value: '' if isinstance(value, str) else str(list(value)),
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)
