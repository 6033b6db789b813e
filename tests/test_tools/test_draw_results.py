"""The tools that draw the model zoo's results, and FLOPs against the image's size."""

import csv

import pytest
import yaml
from PIL import Image

from tools.analysis import draw_flops, draw_results

CLASSIFIERS = draw_results.ROOT / 'configs/classification'
MODELS = [
    dict(
        Name=name,
        Config=f'configs/f/{name}.py',
        Metadata={'Parameters': 1e6, 'FLOPs': gflops * 1e9},
        **{'Paper Results': [{'Metrics': {'AP': ap}}] if ap else []},
    )
    for name, gflops, ap in [('a_s', 3, 51.5), ('a_t', 2, 50.0), ('b_t', 1, None)]
]


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A folder of configs whose models have a metric, but for one."""
    folder = tmp_path / 'configs/f'
    folder.mkdir(parents=True)
    (folder / 'metafile.yml').write_text(yaml.safe_dump({'Models': MODELS}))
    monkeypatch.setattr(draw_results, 'ROOT', tmp_path)
    monkeypatch.chdir(tmp_path)
    return folder / 'metafile.yml'


def rows_of(path):
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def run(*args: str):
    draw_results.main([*args, '--out', 'drawn/r.png'])


def test_points_are_in_order_and_name_their_source(zoo, tmp_path):
    run('--panel', 'f', 'AP', '--x', 'FLOPs', '--series', 'A', 'a_*,b_t')
    assert [
        (r['model'], r['FLOPs'], r['value'], r['source'])
        for r in rows_of(tmp_path / 'drawn/r.csv')
    ] == [('a_t', '2', '50', 'reported'), ('a_s', '3', '51.5', 'reported')]
    with Image.open(tmp_path / 'drawn/r.png') as picture:
        assert picture.size == (374, 352)


def vit_gflops(size: int, C: int = 192, depth: int = 12) -> float:
    """Count a ViT-T/16 without a class token by hand."""
    N = (size // 16) ** 2
    block = 12 * N * C**2 + 2 * N**2 * C
    return (N * 16 * 16 * 3 * C + depth * block + 1000 * C) / 1e9


def test_flops_at_several_sizes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = str(CLASSIFIERS / 'vit_t16_mhsa_300e_in1k.py')
    draw_flops.main([config, '--sizes', '320', '160', '160', '--out', 'drawn/f.png'])
    rows = rows_of(tmp_path / 'drawn/f.csv')
    assert [row['size'] for row in rows] == ['160', '320']
    for row in rows:
        expected = vit_gflops(int(row['size']))
        assert float(row['gflops']) == pytest.approx(expected, rel=1e-5)
    with Image.open(tmp_path / 'drawn/f.png') as picture:
        assert picture.size == (660, 440)
