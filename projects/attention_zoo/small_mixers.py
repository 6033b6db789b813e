"""Small mixers, and the steps around their attention, for the tests."""

import pytest
import torch

from projects.attention_zoo.combiner import CombinerAttention
from projects.attention_zoo.eva import EVAAttention
from projects.attention_zoo.lara import LARAAttention
from projects.attention_zoo.local import LocalAttention
from projects.attention_zoo.long_short import LongShortAttention
from projects.attention_zoo.nystromformer import NystromAttention
from projects.attention_zoo.performer import PerformerAttention
from projects.attention_zoo.scatterbrain import ScatterbrainAttention

WIDTH, HEADS = 8, 2
D = WIDTH // HEADS
SMALL = {
    CombinerAttention: dict(window=2),
    EVAAttention: dict(window=2, landmarks=2),
    LARAAttention: dict(landmarks=2),
    LocalAttention: dict(window=2),
    LongShortAttention: dict(window=2, rank=3),
    NystromAttention: dict(landmarks=2, conv_kernel=3),
    PerformerAttention: dict(num_features=6),
    ScatterbrainAttention: dict(num_features=6, window=2),
}
every_mixer = pytest.mark.parametrize('mixer', SMALL, ids=lambda mixer: mixer.__name__)


def make(mixer, **settings):
    """Return a small mixer in float64 with random weights."""
    torch.manual_seed(0)
    layer = mixer(WIDTH, HEADS, **SMALL[mixer] | settings).double().eval()
    for parameter in layer.parameters():  # initial values are too near zero
        torch.nn.init.normal_(parameter, std=0.4)
    return layer


def maps(height, width, batch=2):
    """Return random maps of shape (batch, height, width, WIDTH) in float64."""
    return torch.randn(batch, height, width, WIDTH, dtype=torch.float64)


def heads_of(layer, x):
    """Return q, k and v of shape (B, M, N, D) by slices of the projection."""
    qkv = layer.qkv(x).flatten(1, 2)
    parts = qkv.split(WIDTH, -1)
    return [torch.stack(part.split(D, -1), 1) for part in parts]


def output_of(layer, heads, x):
    """Project the heads' outputs (B, M, N, D)."""
    return layer.proj(torch.cat(heads.unbind(1), -1)).view_as(x)


def positions(height, width):
    """Return the row and the column of each pixel, two tensors of shape (N,)."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij')
    return y.flatten(), x.flatten()
