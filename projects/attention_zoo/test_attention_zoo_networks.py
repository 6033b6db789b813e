"""ZooViT with each mixer, its counts and FLOPs, and what the README quotes."""

import csv
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip('mmengine')

from mmengine.config import Config
from mmengine.registry import MODELS

from mmattn.analysis import count
from mmattn.analysis.flops import build
from mmattn.models import ViT
from projects.attention_zoo import complexity
from projects.attention_zoo.combiner import CombinerAttention
from projects.attention_zoo.eva import EVAAttention
from projects.attention_zoo.lara import LARAAttention
from projects.attention_zoo.local import LocalAttention
from projects.attention_zoo.long_short import LongShortAttention
from projects.attention_zoo.nystromformer import NystromAttention
from projects.attention_zoo.performer import PerformerAttention
from projects.attention_zoo.scatterbrain import ScatterbrainAttention
from projects.attention_zoo.small_mixers import HEADS, SMALL, WIDTH, every_mixer
from projects.attention_zoo.zoo_vit import ZooViT

FOLDER = Path(__file__).parent


@every_mixer
def test_network(mixer):
    torch.manual_seed(0)
    arch = dict(embed_dims=WIDTH, depth=2, num_heads=HEADS)
    model = MODELS.build(
        dict(
            type='ZooViT',
            arch=arch,
            img_size=32,
            frozen_stages=1,
            mixer=dict(type=mixer.__name__, **SMALL[mixer]),
        )
    )
    (out,) = model(torch.randn(2, 3, 40, 33))
    assert out.shape == (2, WIDTH, 3, 3)
    out.square().sum().backward()
    for name, parameter in model.named_parameters():
        frozen = name.startswith(('stem', 'blocks.0'))
        assert (parameter.grad is None) == frozen, name
    # Weights of the dense network fit, beside those that the mixer adds.
    weights = ViT(arch, 'mhsa', img_size=32).state_dict()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all('.attn.' in name for name in missing)


def test_wrong_mixers_are_refused():
    arch = dict(embed_dims=WIDTH, depth=2, num_heads=HEADS)
    with pytest.raises(KeyError, match='NoSuchAttention'):
        ZooViT(arch, dict(type='NoSuchAttention'))
    with pytest.raises(TypeError, match='landmark_count'):
        ZooViT(arch, dict(type='EVAAttention', landmark_count=7))
    with pytest.raises(TypeError, match='depth'):  # a key that ResNet's config left
        ZooViT(arch, dict(type='LocalAttention'), depth=50)


def test_config_builds():
    cfg = Config.fromfile(FOLDER / 'vit_t16_zoo_300e_in1k.py')
    backbone = build(cfg.model.backbone)
    assert isinstance(backbone, ZooViT)
    assert isinstance(backbone.blocks[11].attn, EVAAttention)


class OnMaps(torch.nn.Module):
    """Run a layer on maps of the size of an image, for `count`."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, image):
        B, _, H, W = image.shape
        return self.layer(image.new_empty(B, H, W, 192))


@pytest.mark.parametrize(
    'mixer, products, off_tokens',
    [
        (LocalAttention, 2 * 49, 0),
        (PerformerAttention, 4 * 96, 0),
        (ScatterbrainAttention, 4 * 96 + 2 * 49, 0),
        (NystromAttention, 4 * 49 + 35, 2 * 49**2 * 192 + 3 * 6 * 4 * 49**3),
        (LARAAttention, 5 * 49, 3 * 49**2 * 192 + 2 * 49 * 64 * 192),
        (EVAAttention, 2 * 49 + 2 * 49 + 1, 2 * 49 * 64 * 192),
        (CombinerAttention, 2 * 49 + 2 * 16 + 2, 0),
        (LongShortAttention, 3 * 49 + 4 * 49 + 2 * 64, 0),
    ],
)
def test_flops_in_closed_form(mixer, products, off_tokens):
    """Count products with C channels for each of 784 tokens, and all others."""
    with torch.device('meta'):
        layer = OnMaps(mixer(192, 3))
    flops = count(layer, (28, 28)).flops
    assert flops == 784 * (4 * 192 + products) * 192 + off_tokens


def test_readme_has_the_table():
    begin, end = complexity.MARKS
    shown = complexity.README.read_text().partition(begin)[2].partition(end)[0]
    table = complexity.table(complexity.read(complexity.COUNTS))
    assert shown == f'\n{table}\n'


@pytest.mark.parametrize(
    'method',
    [
        'EVA',
        *(
            pytest.param(method, marks=pytest.mark.slow)
            for method in (*complexity.MIXERS, *complexity.OURS)
            if method != 'EVA'
        ),
    ],
)
def test_counts_are_those_of_the_file(method):
    pytest.importorskip('mmpretrain')
    row = next(r for r in complexity.read(complexity.COUNTS) if r['method'] == method)
    found = complexity.count_network(method, row['network'], int(row['size']))
    assert row['params_m'] == f'{found.params / 1e6:.3f}'
    assert row['flops_g'] == f'{found.flops / 1e9:.3f}'


def test_readme_example():
    (block,) = re.findall(r'```python\n(.*?)```', complexity.README.read_text(), re.S)
    scope = {}
    exec(block, scope)
    assert scope['out'].shape == (1, 28, 28, 192)


def test_readme_quotes_the_benchmark():
    text = complexity.README.read_text().replace('\n', ' ')
    rows = complexity.read(FOLDER / 'mixers_cpu.csv')
    rows = [row for row in rows if row['tokens'] == '3136']
    for which, words in (
        ('forward', '{:.1f} to {:.1f} times in the forward'),
        ('forward+backward', '{:.1f} to {:.1f} times with the backward'),
    ):
        speeds = sorted(float(r['speedup']) for r in rows if r['pass'] == which)
        assert words.format(speeds[1], speeds[-1]) in text and speeds[0] == 1
    spread = max(float(row['spread_percent']) for row in rows)
    assert f'spread by up to {spread:.0f}%' in text


@pytest.mark.slow
def test_benchmark(tmp_path):
    for name in ('timm', 'matplotlib', 'rich'):
        pytest.importorskip(name)
    from tools.benchmark import op, plot

    path = tmp_path / 'mixers.csv'
    options = ['--quick', '--sides', '3', '--rounds', '1', '--csv', str(path)]
    assert op.main([str(FOLDER / 'mixers.py'), *options]) == 0
    with path.open(newline='') as file:
        rows = list(csv.DictReader(file))
    assert {row['operator'] for row in rows} == {'mixers'}
    methods = {row['method'] for row in rows}
    assert methods > complexity.MIXERS.keys() and len(rows) == 2 * len(methods)
    ours = {method for method in methods if plot.is_our_method(method, 'mixers')}
    assert ours == {method for method in methods if method.startswith('mmattn ')}
    assert len(ours) == 3
