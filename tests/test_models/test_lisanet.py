"""LiSANet: stages, kernels and their grids, checkpoints at other sizes."""

import pytest
import torch
from layer_checks import randn, randomize
from refusals import refuses
from torch import nn
from torch.testing import assert_close

from mmattn.models import LiSANet
from mmattn.models.layers import StructureAwareAttention
from mmattn.weights.load import load_weights

HYBRID = dict(
    embed_dims=(16, 32, 48, 32),
    depths=(1, 1, 2, 1),
    mlp_ratios=(2, 2, 2, 2),
    conv_stages=2,
    patterns=3,
)
PYRAMID = dict(HYBRID, conv_stages=0)
PLAIN = dict(embed_dims=(32,), depths=(2,), mlp_ratios=(2,), conv_stages=0, patterns=3)


def build(arch=HYBRID, **kwargs):
    torch.manual_seed(0)
    return LiSANet(arch, **kwargs).eval()


def mixers(model, kind=StructureAwareAttention):
    return [m for m in model.modules() if isinstance(m, kind)]


@pytest.mark.parametrize(
    'arch, kwargs',
    [
        (HYBRID, dict(activation='star_relu')),
        (PYRAMID, dict(out_norm=False)),
        (PLAIN, {}),
    ],
    ids=['hybrid', 'pyramid', 'plain'],
)
def test_maps_are_those_of_blocks_with_two_residuals(arch, kwargs):
    """Tests of the layers hold the position embedding, attention and MLP."""
    model = build(arch, img_size=64, **kwargs).double()
    for name, param in model.named_parameters():
        nn.init.normal_(param, mean=float(name.endswith('scale')), std=0.2)
    image = randn(2, 3, 64, 96)
    x, maps = model.stem(image.movedim(1, -1)), []
    plain = arch is PLAIN
    levels = [model.blocks] if plain else [stage.blocks for stage in model.stages]
    for stage, blocks in enumerate(levels):
        x = x if plain else model.stages[stage].downsample(x)
        for block in blocks:
            assert block.position is None if plain else block.position.residual
            x = x if plain else block.position(x)
            x = x + block.attn(block.norm1(x))
            x = x + block.mlp(block.norm2(x))
        norms = kwargs.get('out_norm', True)
        last = model.out_indices[-1] if plain else stage
        maps.append(model.out_norms[str(last)](x) if norms else x)
    expected = tuple(x.movedim(-1, 1) for x in maps)
    assert_close(model(image), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize('arch', [HYBRID, PYRAMID, PLAIN])
def test_a_checkpoint_of_another_size_is_the_network_of_that_size(arch):
    """Kernels resized on load equal kernels resized at run time, and kept spectra."""
    small = randomize(build(arch, img_size=64, cache_size=2).double(), 0.2)
    for size in ((128, 160), (37, 50)):
        other = build(arch, img_size=size).double()
        other.load_state_dict(small.state_dict())
        x = randn(1, 3, *size)
        expected = small(x)
        assert_close(other(x), expected)
        with torch.no_grad():
            for _ in range(2):
                assert_close(small(x), expected)
    assert all(len(mixer.cache) == 2 for mixer in mixers(small))


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


test_wrong_arguments = refuses(
    build,
    (dict(patch_size=4), 'one stage, got 4'),
    (dict(activation='relu'), "'relu'"),
    (dict(arch=dict(HYBRID, embed_dims=(16, 32, 40, 48))), '40'),
)


def test_a_wider_network_of_its_own_kind_does_not_fit():
    wide = build(dict(HYBRID, mlp_ratios=(4, 4, 4, 4)))
    report = load_weights(build(), wide.state_dict())
    assert len(report.mismatched) == 5 * sum(HYBRID['depths'])


def kept_maps(call, x, model):
    """Return the bytes that a call keeps for its backward, over those of `x`.

    Parameters do not count.
    """
    kept, own = [], {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
        call(x)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in kept}
    sizes = [storage.nbytes() for at, storage in storages.items() if at not in own]
    return sum(sizes) / x.untyped_storage().nbytes()


@pytest.mark.parametrize('stage, maps', [(0, 13), (2, 12)], ids=['conv', 'attention'])
def test_a_block_keeps_no_outputs_of_norms_and_activations(stage, maps):
    """Count maps of C channels: beside them, blocks keep little of any width.

    Three are inputs of norms and of the position embedding, four are the MLP's. Beside
    these, a convolution keeps six, and attention q, k, v, an input and patterns.
    """
    model = build(img_size=128, backend='torch').train()
    block = model.stages[stage].blocks[0]
    side, channels = 32 >> stage, model.level_channels[stage]
    x = torch.randn(1, side, side, channels, requires_grad=True)
    assert kept_maps(block, x, model) < maps + 1
    model.with_cp = True
    assert kept_maps(lambda x: model.run(block, x), x, model) == 1
