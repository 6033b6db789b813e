"""Small mixers for the tests."""

import pytest

from projects.attention_zoo.combiner import CombinerAttention
from projects.attention_zoo.eva import EVAAttention
from projects.attention_zoo.lara import LARAAttention
from projects.attention_zoo.local import LocalAttention
from projects.attention_zoo.long_short import LongShortAttention
from projects.attention_zoo.nystromformer import NystromAttention
from projects.attention_zoo.performer import PerformerAttention
from projects.attention_zoo.scatterbrain import ScatterbrainAttention

WIDTH, HEADS = 8, 2
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
