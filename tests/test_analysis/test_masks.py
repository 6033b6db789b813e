"""A backbone's masks: its masked layers, their widths and alphas."""

from functools import partial

import pytest
import torch
from torch import nn

from mmattn.analysis import attention_locality, mask_alphas, mask_layers
from mmattn.models import MaiT, MaskedCaiT, ViT

ARCH = dict(embed_dims=24, depth=8, num_heads=3)
BACKBONES = {
    'mait': partial(MaiT, ARCH, img_size=64),
    'vit': partial(ViT, ARCH, 'masked', img_size=64),
    'cait': partial(MaskedCaiT, ARCH, img_size=64),
}
LAYERS = [f'blocks.{i}.attn' for i in range(8)]


@pytest.fixture(params=BACKBONES)
def make(request):
    def call(masking):
        torch.manual_seed(0)
        return BACKBONES[request.param](masking=masking).eval()

    return call


def test_alphas_are_the_sigmoid_of_what_is_learned(make):
    backbone = make('soft')
    for layer in mask_layers(backbone).values():
        if layer.alpha_logit is not None:
            nn.init.normal_(layer.alpha_logit)
    alphas = mask_alphas(backbone)
    assert alphas.shape == (8, 3)
    assert alphas[7].isnan().all()  # 'soft' has no masks in the last eighth
    for name, found in zip(LAYERS[:7], alphas[:7], strict=True):
        assert torch.equal(found, backbone.get_submodule(name).alpha_logit.sigmoid())
    assert alphas[:7].unique().numel() == 21


def test_models_without_alphas_are_refused():
    with pytest.raises(ValueError, match='has no soft masks'):
        mask_alphas(BACKBONES['mait'](masking='sch1'))


def test_layers_are_those_that_can_mask(make):
    layers = mask_layers(make([0, 2, (1, 2), 0, 0, 0, 0, 3]))
    assert [*layers] == LAYERS
    heads = [layer.masked_heads for layer in layers.values()]
    assert heads == [(), (0, 1), (1, 2), (), (), (), (), (0, 1, 2)]


@pytest.mark.parametrize('masking', ['none', 'soft'])
def test_every_layer_has_a_locality(make, masking):
    """Also those with global heads alone, and those between talking heads."""
    images = torch.randn(2, 3, 64, 49)
    scores = attention_locality(make(masking), images)
    assert scores.shape == (8, 3) and scores.isfinite().all()
    neighbors = 100 / 16  # in the mean over 4 x 4 patches
    assert (scores > 0.8 * neighbors / 17).all()
    assert (scores < 1.2 * neighbors / 16).all()
