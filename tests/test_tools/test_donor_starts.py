"""The script that compares starts, and the table of its rows."""

import csv

import numpy as np
import pytest
import torch
from idx_files import idx

from mmattn.datasets.fashion_mnist import FILES
from tools.dev.start_tables import gain_table
from tools.evidence import donor_starts
from tools.evidence.verdicts import UNDECIDED


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Return the arguments of runs of a step, on ten images."""
    rng = np.random.default_rng(0)
    for images, labels in FILES.values():
        (tmp_path / images).write_bytes(idx(rng.integers(256, size=(10, 28, 28))))
        (tmp_path / labels).write_bytes(idx(np.arange(10)))
    monkeypatch.setattr(donor_starts, 'ITERATIONS', dict(donor=1, random=1))
    monkeypatch.setattr(donor_starts, 'WARMUP', 0)
    monkeypatch.setattr(donor_starts, 'BATCH', 2)
    folders = ['--data', tmp_path, '--work-dir', tmp_path, '--out', tmp_path / 'a.csv']
    return [str(each) for each in folders]


@pytest.mark.parametrize('pair', donor_starts.PAIRS)
def test_runs_are_added_once_and_differ_in_the_start_alone(
    settings, pair, monkeypatch, capsys
):
    seen = []

    def train(model, data, size, iterations):
        assert len(data.images) == 5 and data.labels.max() == 4
        seen.append((model.state_dict(), data, torch.get_rng_state()))

    monkeypatch.setattr(donor_starts, 'train', train)
    monkeypatch.setattr(donor_starts, 'SEEDS', range(1))
    for _ in range(2):
        donor_starts.main([*settings, '--pairs', pair])
    assert capsys.readouterr().out.endswith('nothing is left\n')
    with open(settings[-1], newline='') as file:
        rows = list(csv.DictReader(file))
    assert [row['start'] for row in rows] == ['random', 'donor']
    assert float(rows[0]['share']) == 0 and float(rows[1]['share']) > 0.9
    _, (random, images, state), (donor, same_images, same_state) = seen
    assert torch.equal(images.images, same_images.images)
    assert torch.equal(state, same_state)
    assert torch.equal(random['head.weight'], donor['head.weight'])
    name = 'backbone.stem.proj.weight'
    assert not torch.equal(random[name], donor[name])


def test_a_step_trains(monkeypatch):
    monkeypatch.setattr(donor_starts, 'WARMUP', 1)
    monkeypatch.setattr(donor_starts, 'BATCH', 4)
    data = donor_starts.Data(torch.full((4, 32, 32), 9).byte(), torch.zeros(4).long())
    pair = donor_starts.PAIRS['DeiT, ViT with iMHSA']
    model = donor_starts.PooledClassifier(pair.ours(), 5)
    before = model.head.bias.clone()
    donor_starts.train(model, data, pair.size, 2)
    assert model.head.bias[0] > before[0]
    assert donor_starts.accuracy(model, data, pair.size) in (0, 100)


def test_photographs_move_and_turn_around_but_keep_their_pixels(monkeypatch):
    images = torch.arange(16 * 32 * 32).view(16, 32, 32)
    monkeypatch.setattr(donor_starts, 'SHIFT', 0)
    mirrored = [
        torch.equal(image, original.flip(1))
        for image, original in zip(donor_starts.moved(images), images, strict=True)
        if torch.equal(image, original) or torch.equal(image, original.flip(1))
    ]
    assert len(mirrored) == 16 and {*mirrored} == {True, False}


def test_the_table_pairs_runs_of_a_seed(tmp_path):
    rows = ['pair,start,seed,accuracy,share']
    for seed, (random, donor) in enumerate([(50, 52), (60, 63), (70, 71)]):
        rows += [f'a,donor,{seed},{donor},0.9', f'a,random,{seed},{random},0.0']
    rows += ['a,random,3,10,0.0', 'b,random,0,1,0.0']
    (tmp_path / 'a.csv').write_text('\n'.join(rows))
    *_, row = gain_table(tmp_path / 'a.csv').splitlines()
    cells = 'a', '90.0%', '3', '60.0', '62.0', '+2.0', '-0.5 to +4.5', UNDECIDED
    assert row == f'| {" | ".join(cells)} |'
