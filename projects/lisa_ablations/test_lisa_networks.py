"""AblationLiSANet: config, parts, export, and counts of the paper's Tables 3, 4, 12."""

import json

import pytest
import torch
from refusals import refuses

pytest.importorskip('mmengine')

from export_checks import OnnxSession
from resampling import cubic, resized

from mmattn.models import LiSANet
from mmattn.models.layers import undecayed_names
from projects.lisa_ablations import counts
from projects.lisa_ablations.network import MIXERS, AblationLiSANet
from projects.lisa_ablations.variants import PatternAttention, SelfAttention
from tools.benchmark.tolerances import assert_close
from tools.papers.counts import row_model

PLAIN = dict(embed_dims=(32,), depths=(2,), mlp_ratios=(2,), conv_stages=0, patterns=3)


def make(mixer, **settings):
    return AblationLiSANet(PLAIN, mixer=mixer, **settings)


@pytest.mark.parametrize('mixer', MIXERS)
def test_networks(mixer):
    """Around the mixers they are LiSANet."""
    torch.manual_seed(0)
    model = make(mixer, img_size=64, frozen_stages=1)
    (out,) = model(torch.randn(2, 3, 70, 33))
    assert out.shape == (2, 32, 5, 3)
    out.square().sum().backward()
    for name, parameter in model.named_parameters():
        frozen = name.startswith(('stem', 'blocks.0'))
        assert (parameter.grad is None) == frozen, name
    weights = LiSANet(PLAIN, img_size=64).state_dict()
    weights = {name: w for name, w in weights.items() if '.attn.' not in name}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all('.attn.' in name for name in missing)


def test_config_and_its_options():
    wide = dict(mixer='local', local_kernel=3, embed_dims=204, num_heads=12)
    options = json.dumps(counts.options(wide))
    model = row_model(counts.FOLDER / counts.CONFIG, options).backbone
    assert isinstance(model, AblationLiSANet) and len(model.blocks) == 12
    for block in model.blocks:
        assert block.attn.w_a.shape == (17, 16, 3, 3)


@pytest.mark.parametrize('mixer', ['self_attention_rpes', 'sa_eq9', 'local'])
def test_tables_decay_unless_they_are_added_to_scores(mixer):
    """Others multiply, as the kernels of a convolution do, or the filters of GFNet."""
    spared = {'stem.pos_embed'}
    if mixer == 'self_attention_rpes':
        spared |= {f'blocks.{i}.attn.table' for i in range(2)}
    assert undecayed_names(make(mixer, img_size=64)) == spared


test_wrong_arguments = refuses(
    AblationLiSANet,
    (dict(mixer='softmax'), "'softmax'"),
    (dict(mixer='rsa', embed_dims=36), 'num_heads given, got 36'),
    (dict(mixer='rsa', arch='small'), r'one stage, got depths \(2, 4'),
)


@pytest.mark.slow
def test_tables_that_require_gradients_in_onnx_runtime():
    torch.manual_seed(0)
    layer = SelfAttention(8, 2, (6, 5), tables=2).eval()
    x = torch.randn(2, 6, 5, 8)
    session = OnnxSession(layer, (x,))
    with torch.no_grad():
        assert_close('out', layer(x), session(x)[0])


@pytest.mark.parametrize('old, new', [((16, 16), (8, 8)), ((8, 8), (12, 20))], ids=str)
@pytest.mark.parametrize('name', ['table', 'table_a', 'table_b'])
def test_loaded_tables_are_interpolated(name, old, new):
    def layer(grid):
        if name == 'table':
            return SelfAttention(24, 3, grid, tables=3).double()
        return PatternAttention(24, 3, grid, patterns=2, hadamard=True).double()

    source, other = layer(old), layer(new)
    other.load_state_dict(source.state_dict())
    size = tuple(2 * side - 1 for side in new)
    expected = resized(getattr(source, name).detach(), size, cubic)
    torch.testing.assert_close(getattr(other, name).data, expected, rtol=0, atol=1e-12)


ROWS = counts.read_rows()


@pytest.mark.parametrize(
    'name',
    [
        name
        if name in ('lisanet_i_rsa', 'lisanet_i_local_3')
        else pytest.param(name, marks=pytest.mark.slow)
        for name in ROWS
    ],
)
def test_counts(name):
    """A change that moves a figure, even nearer to the paper's, has to be recorded."""
    found = counts.count_row(ROWS[name])
    for kind, ours in ROWS[name]['ours'].items():
        assert found[kind] == round(ours * counts.UNITS[kind])


def test_readme_has_the_table():
    begin, end = counts.MARKS
    shown = counts.README.read_text().partition(begin)[2].partition(end)[0]
    assert shown == f'\n{counts.table(ROWS)}\n'
