"""`mmattn flops`: its tree, its defaults, its errors."""

import pytest
from fresh import ROOT

from mmattn.cli import flops as tool

VIT = str(ROOT / 'configs/classification/vit_t16_imhsa_300e_in1k.py')
MASK_RCNN = str(ROOT / 'configs/demo/mask_rcnn_ivit_n_hela.py')
LISA = str(ROOT / 'configs/classification/lisanet_s_300e_in1k.py')
LARGE = str(ROOT / 'configs/classification/dat_b_384_30e_in1k.py')
PATCHES = str(ROOT / 'configs/demo/mait_n_landcover_patches.py')
UPERNET = str(ROOT / 'configs/demo/upernet_ivit_n_landcover.py')


def table(text):
    """The lines of the module tree: name -> its figures."""
    lines = text.split('FLOPs (%)\n')[1].splitlines()
    cells = [line.split() for line in lines]
    others = ('without transforms (G)', 'dense (G)')
    width = 3 + sum(title in text for title in others)
    return {name: [float(x) for x in row] for name, *row in cells if len(row) == width}


def test_tree_has_the_asked_depth(capsys):
    assert tool.main([UPERNET, '--shape', '64', '128', '--depth', '1']) == 0
    out = capsys.readouterr().out
    assert '64x128' in out
    rows = table(out)
    assert set(rows) == {'model', 'backbone', 'decode_head'}
    parts = [row for name, row in rows.items() if name != 'model']
    for column in range(3):
        total = sum(row[column] for row in parts)
        assert total == pytest.approx(rows['model'][column], abs=0.2)
    tool.main([UPERNET, '--shape', '64', '--depth', '3'])
    assert len(table(capsys.readouterr().out)) > 2 * len(rows)


@pytest.mark.parametrize(
    'config, shape',
    [(LARGE, '384x384'), (PATCHES, '32x32'), (MASK_RCNN, '800x1280')],
    ids=['large', 'patches', 'detection'],
)
def test_default_shape_is_the_configs_or_the_tasks(capsys, config, shape):
    assert tool.main([config, '--depth', '0']) == 0
    assert f'at {shape}.' in capsys.readouterr().out


@pytest.mark.parametrize(
    'step, shape',
    [
        ("dict(type='Resize', scale=(64, 96))", '96x64'),
        ("dict(type='Resize', scale=48), dict(type='CenterCrop', crop_size=3)", '3x3'),
        ("dict(type='Resize', scale=(48, 9), keep_ratio=True)", '224x224'),
    ],
)
def test_default_shape_of_a_classifier_is_what_it_is_tested_on(
    capsys, tmp_path, step, shape
):
    config = tmp_path / 'classifier.py'
    config.write_text(
        "default_scope = 'mmpretrain'\n"
        "model = dict(type='mmattn.IViT', arch='nano')\n"
        f'test_dataloader = dict(dataset=dict(pipeline=[{step}]))\n'
    )
    assert tool.main([str(config), '--depth', '0']) == 0
    assert f'at {shape}.' in capsys.readouterr().out


def test_both_conventions_are_printed_where_they_differ(capsys):
    """In the total and in the parts."""
    assert tool.main([LISA, '--depth', '2']) == 0
    out = capsys.readouterr().out
    assert 'without transforms (G)' in out and 'N log2 N' in out
    rows = table(out)
    assert rows['model'] == [24.718, 4.194, 3.904, 100.0]
    assert rows['stages'][1] - rows['stages'][2] == pytest.approx(0.290, abs=0.0011)
    assert rows['stem'][1] == rows['stem'][2] > 0
    tool.main([VIT, '--depth', '0'])
    out = capsys.readouterr().out
    assert 'without transforms' not in out and 'N log2 N' not in out


def test_shape_is_needed_without_a_task(tmp_path):
    config = tmp_path / 'backbone.py'
    config.write_text("model = dict(type='mmattn.IViT', arch='nano')")
    with pytest.raises(ValueError, match='--shape is needed'):
        tool.main([str(config)])
    assert tool.main([str(config), '--shape', '64']) == 0
