"""IViT: its frame against timm's MetaFormer, its stages, and what its options reach."""

import re

import pytest
import torch
from layer_checks import randn, randomize
from timm.models.metaformer import (
    Attention,
    LayerNorm2dNoBias,
    LayerNormNoBias,
    MetaFormer,
    SepConv,
)
from torch import nn
from torch.testing import assert_close

from mmattn.models import IViT
from mmattn.weights.load import load_weights

SHALLOW = dict(embed_dims=(8, 16, 24, 32), depths=(1, 2, 1, 1), num_heads=(2, 4))


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return IViT(arch, **kwargs)


def metaformer(arch, **kwargs):
    return MetaFormer(depths=arch['depths'], dims=arch['embed_dims'], **kwargs)


def test_frame_is_metaformers():
    """With its kernel of 7, and the identity for attention in both."""
    model = build(conv_kernel=7, out_norm=False)
    mixers = dict(token_mixers=SepConv, norm_layers=LayerNorm2dNoBias)
    theirs = metaformer(SHALLOW, num_classes=0, **mixers)
    for stage in (2, 3):
        model.stages[stage].blocks[0].attn = nn.Identity()
        theirs.stages[stage].blocks[0].token_mixer = nn.Identity()
    randomize(theirs, 0.5)
    report = load_weights(model, theirs.state_dict())
    assert not report.missing and not report.resized
    assert all(name.startswith('head.') for name in report.unexpected)
    model, theirs = model.double(), theirs.double().eval()
    x = randn(2, 3, 33, 47)
    assert_close(model(x)[-1], theirs.forward_features(x))


def test_options_reach_the_attention():
    as_printed = dict(interact_expand=1, local_kernel=None, gate=False)
    model = build(landmarks=14, backend='reference', **as_printed)
    for stage in (2, 3):
        attn = model.stages[stage].blocks[0].attn
        assert attn.landmarks == 14 and attn.backend == 'reference'
        assert attn.w1_q.shape == (attn.num_heads, attn.num_heads)
        assert attn.local is None and attn.gate is None


# Heads of CAFormer have 32 channels.
LIKE_CAFORMER = dict(SHALLOW, embed_dims=(8, 16, 32, 64), num_heads=(1, 2))


def caformer():
    mixers = dict(
        token_mixers=[SepConv] * 2 + [Attention] * 2,
        norm_layers=[LayerNorm2dNoBias] * 2 + [LayerNormNoBias] * 2,
    )
    theirs = metaformer(LIKE_CAFORMER, num_classes=5, **mixers)
    return {k: torch.randn(v.shape) for k, v in theirs.state_dict().items()}


def authors_name(name):
    """Return the name that a tensor of timm's CAFormer has in its authors' code."""
    name = name.replace('stem.', 'downsample_layers.0.').replace('.blocks.', '.')
    name = re.sub(r'stages\.(\d)\.downsample', r'downsample_layers.\1', name)
    name = re.sub(r'(layers\.0)\.norm', r'\1.post_norm', name)
    return re.sub(r'(layers\.\d)\.norm', r'\1.pre_norm', name)


@pytest.mark.parametrize('of_authors', [False, True])
def test_it_takes_all_of_caformer_but_its_head(of_authors):
    theirs, model = caformer(), build(LIKE_CAFORMER)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    given = {authors_name(k) if of_authors else k: v for k, v in theirs.items()}
    report = load_weights(model, given)
    own = model.state_dict()
    assert all(name.startswith('head.') for name in report.unexpected)
    assert len(report.matched) == len(theirs) - len(report.unexpected)
    assert not report.mismatched
    assert {name.partition('.attn.')[2] or name[:9] for name in report.missing} == {
        *('w1_q', 'w2_q', 'w1_k', 'w2_k', 'qkv.bias', 'proj.bias', 'out_norms'),
        *('local.weight', 'local.bias'),
        *(f'gate.{i}.{leaf}' for i in (0, 2) for leaf in ('weight', 'bias')),
    }
    for name in report.missing:
        assert torch.equal(own[name], fresh[name])
    for part in ('2.blocks.0.{}.qkv', '3.blocks.0.{}.proj', '0.blocks.0.{}.pwconv1'):
        taken = own[f'stages.{part}.weight'.format('attn')]
        their = theirs[f'stages.{part}.weight'.format('token_mixer')]
        assert torch.equal(taken, their.flatten(1)), part
    assert [*report.resized.values()] == [
        ((2 * C, 1, 7, 7), (2 * C, 1, 3, 3)) for C in (8, 16, 16)
    ]
    for name in report.resized:
        kernel = theirs[name.replace('.attn.', '.token_mixer.')]
        assert torch.equal(own[name], kernel[..., 2:5, 2:5])
    total = sum(param.numel() for param in model.parameters())
    counted = [*report.matched, *report.missing]
    assert sum(report.sizes[name] for name in counted) == total


def test_a_larger_kernel_than_the_files_is_reported():
    report = load_weights(build(LIKE_CAFORMER, conv_kernel=9), caformer())
    assert len(report.mismatched) == 3
