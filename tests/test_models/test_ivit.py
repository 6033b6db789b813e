"""IViT: its frame against timm's MetaFormer, its stages, and what its options reach."""

import torch
from timm.models.metaformer import LayerNorm2dNoBias, MetaFormer, SepConv
from torch import nn
from torch.testing import assert_close

from mmattn.models import IViT
from mmattn.models.backbones.ivit import SeparableConv
from mmattn.models.layers import InteractiveAttention, undecayed_names

SHALLOW = dict(embed_dims=(8, 16, 24, 32), depths=(1, 2, 1, 1), num_heads=(2, 4))
TIMM_NAMES = {  # of ours, in this order
    '.proj.': '.conv.',  # of stem and downsampling; attention is left out
    'attn.act': 'attn.act1',
    'attn.': 'token_mixer.',
    'scale1': 'res_scale1.scale',
    'scale2': 'res_scale2.scale',
}


def build(arch=SHALLOW, **kwargs):
    torch.manual_seed(0)
    return IViT(arch, **kwargs)


def timm_name(name):
    for ours, theirs in TIMM_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def test_frame_is_metaformers(shape=(33, 47)):
    """With its kernel of 7, and the identity for attention in both."""
    model = build(conv_kernel=7, out_norm=False)
    theirs = MetaFormer(
        depths=SHALLOW['depths'],
        dims=SHALLOW['embed_dims'],
        token_mixers=SepConv,
        norm_layers=LayerNorm2dNoBias,
        num_classes=0,
    )
    for stage in (2, 3):
        model.stages[stage].blocks[0].attn = nn.Identity()
        theirs.stages[stage].blocks[0].token_mixer = nn.Identity()
    for param in model.parameters():
        nn.init.normal_(param, std=0.5)
    weights = {timm_name(name): p for name, p in model.named_parameters()}
    expected = theirs.state_dict()
    matching = {
        name: weights[name].reshape(expected[name].shape)
        for name in expected
        if not name.startswith('head.')
    }
    assert set(matching) == set(weights)
    theirs.load_state_dict(matching, strict=False)
    model, theirs = model.double(), theirs.double().eval()
    x = torch.randn(2, 3, *shape, dtype=torch.float64)
    assert_close(model(x)[-1], theirs.forward_features(x))


def test_stages():
    model = build()
    for stage, depth in enumerate(SHALLOW['depths']):
        assert len(model.stages[stage].blocks) == depth
        for block in model.stages[stage].blocks:
            kind = SeparableConv if stage < 2 else InteractiveAttention
            assert isinstance(block.attn, kind)
            assert (block.scale1 is None) == (block.scale2 is None) == (stage < 2)
    assert [stage.blocks[0].attn.num_heads for stage in model.stages[2:]] == [2, 4]


def test_options_reach_the_attention():
    model = build(
        landmarks=14,
        interact_expand=1,
        local_kernel=None,
        gate=False,
        backend='reference',
    )
    for stage in (2, 3):
        attn = model.stages[stage].blocks[0].attn
        assert attn.landmarks == 14 and attn.backend == 'reference'
        assert attn.w1_q.shape == (attn.num_heads, attn.num_heads)
        assert attn.local is None and attn.gate is None


def test_mixtures_of_heads_do_not_decay():
    """They start near the identity, from which decay would pull them to zero."""
    assert undecayed_names(build()) == {
        f'stages.{stage}.blocks.0.attn.w{i}_{side}'
        for stage in (2, 3)
        for i in (1, 2)
        for side in 'qk'
    }
