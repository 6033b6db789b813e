"""projects/evidence: claims, series of runs, and the page."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

from mmattn.errors import UserError
from projects.evidence import demo, report
from projects.evidence import run as runner
from projects.evidence.claim import Claim, Comparison
from projects.evidence.claims import CLAIMS
from projects.evidence.demo import Demo
from projects.evidence.rows import Row, read_rows
from projects.evidence.training import Training, build

ARCH = dict(embed_dims=8, depth=1, num_heads=2)
VIT = dict(type='ViT', arch=ARCH, attention='mhsa', patch_size=4, img_size=28)


def make_claim(**settings) -> Claim:
    """Return a claim about two networks, with other settings."""
    networks = {name: Training(VIT, rate=rate) for name, rate in (('a', 1), ('b', 2))}
    settings = dict(networks=networks, alike=(('a', 'b'),), seeds=(0, 1)) | settings
    comparisons = settings.pop('comparisons', (Comparison('b over a', 'b', 'a'),))
    return Claim('More is better.', 'nobody', comparisons=comparisons, **settings)


@pytest.fixture
def series(tmp_path, monkeypatch):
    """Return a call of run.py, and the runs that it did."""
    done = []

    def execute(network, seed, folder):
        done.append((network.rate, seed))
        return dict(accuracy=10 * network.rate + seed, validation=-network.rate)

    def call(claim: Claim, *args):
        monkeypatch.setattr(runner, 'CLAIMS', dict(x=claim))
        folders = ['--rows', tmp_path / 'runs.csv', '--work-dirs', tmp_path / 'w']
        threads = torch.get_num_threads()
        runner.main([*map(str, ['x', *folders, *args])])
        torch.set_num_threads(threads)
        return [done.pop(0) for _ in range(len(done))]

    monkeypatch.setattr(runner, 'execute', execute)
    call.rows = tmp_path / 'runs.csv'
    return call


def test_a_series_pairs_the_seeds_and_is_done_once(series, capsys):
    assert series(make_claim()) == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert series(make_claim()) == []
    assert series(make_claim(), '--seeds', 3, '--networks', 'b') == [(2, 3)]
    row = read_rows(series.rows)[make_claim().networks['b'].hash, 1]
    assert row.metrics == dict(accuracy=21, validation=-2)
    facts = row.facts
    assert facts['network'] == 'b' and facts['images'] == 102_400
    model = build(make_claim().networks['b'])
    assert facts['parameters'] == sum(p.numel() for p in model.parameters())
    assert facts['flops'] > 0 and facts['machine'] and facts['date']


def test_a_series_leaves_runs_of_others(series, tmp_path):
    folder = tmp_path / 'w' / f'{make_claim().networks["b"].hash}_0'
    with runner.locked(folder):
        assert series(make_claim()) == [(1, 0), (1, 1), (2, 1)]
    assert series(make_claim()) == [(2, 0)]


def test_only_the_choice_runs_with_further_seeds(series):
    claim = make_claim(
        choices=dict(best=('a', 'b')),
        comparisons=(Comparison('', 'best', 'b'),),
    )
    assert series(claim) == [(1, 0), (2, 0), (1, 1)]
    rows = read_rows(series.rows)
    assert claim.chosen(rows) == dict(best='a')  # the best validation, not accuracy
    values = report.Results('x', claim, rows).values('best', 'accuracy')
    assert values == {0: 10, 1: 11}
    assert report.Results('x', claim, {}).values('best', 'accuracy') == {}


def test_networks_must_be_of_one_size_and_known():
    other = Training(VIT | dict(arch=ARCH | dict(embed_dims=16)))
    networks = dict(a=Training(VIT), b=other)
    with pytest.raises(UserError, match='within 5% of each other, got .*b'):
        runner.check_sizes(make_claim(networks=networks))
    runner.check_sizes(make_claim(networks=networks, tolerance=3.0))
    with pytest.raises(UserError, match=r"unknown networks \['c'\]"):
        make_claim(comparisons=(Comparison('', 'c', 'a'),))


@pytest.mark.parametrize('name', CLAIMS)
def test_claims_differ_where_they_say_so(name):
    claim = CLAIMS[name]
    hashes = [network.hash for network in claim.networks.values()]
    assert len(set(hashes)) == len(hashes)
    assert claim.exact or len(claim.seeds) >= 3
    runner.check_sizes(claim)


def test_a_shorter_schedule_ends_at_its_minimum():
    config = 'configs/demo/deformable_detr_ivit_n_hela.py'
    short = Demo(config, 50, {'model.decoder.num_layers': 2})
    warmup, cosine = short.resolved.param_scheduler
    assert cosine.begin == warmup.end
    assert cosine.end == cosine.begin + cosine.T_max == 50
    assert short.resolved.train_cfg.max_iters == 50
    assert short.resolved.train_cfg.val_interval == 50
    assert short.resolved.model.decoder.num_layers == 2
    assert short.images == 50 * short.resolved.train_dataloader.batch_size
    assert len({short.hash, Demo(config, 50).hash, Demo(config, 60).hash}) == 3
    silent = Demo(config, 60, {'default_hooks.logger.interval': 7})
    assert silent.hash == Demo(config, 60).hash
    with pytest.raises(UserError, match='longer than the warmup of 20, got 20'):
        Demo(config, 20).resolved  # noqa: B018


def test_a_demo_returns_its_last_metrics(tmp_path, monkeypatch):
    commands = []

    def run(command, **_):
        commands.append(command)
        folder = tmp_path / f'{len(commands)}' / 'vis_data'
        folder.mkdir(parents=True)
        lines = [dict(step=60, loss=2.0), dict(step=60, time=1, mIoU=len(commands))]
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        (folder / 'scalars.json').write_text(text)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(demo.subprocess, 'run', run)
    network = Demo('configs/demo/deformable_detr_ivit_n_hela.py', 60)
    assert demo.train(network, 3, tmp_path) == dict(mIoU=1)
    assert demo.train(network, 3, tmp_path) == dict(mIoU=2)
    config = demo.Config.fromfile(commands[0][2])
    assert config.randomness.seed == 3
    assert network.resolved.get('randomness', {}).get('seed') != 3
    with pytest.raises(UserError, match='no validation after iteration 61'):
        demo.final_metrics(tmp_path, 61)


def test_a_demo_that_fails_says_why(tmp_path, monkeypatch):
    def run(command, stdout, **_):
        stdout.write('loading\ntrain: there is no such file\n')
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(demo.subprocess, 'run', run)
    network = Demo('configs/demo/deformable_detr_ivit_n_hela.py', 60)
    with pytest.raises(UserError, match=r'train\.log: .* failed: train: there is'):
        demo.train(network, 0, tmp_path)


def rows_of(claim: Claim, **values: list[float]) -> dict:
    rows = {}
    for name, found in values.items():
        for seed, value in enumerate(found):
            key = claim.networks[name].hash, seed
            facts = dict(hash=key[0], seed=seed, images=claim.networks[name].images)
            rows[key] = Row(facts, dict(accuracy=value))
    return rows


PLAN = dict(seeds=(0, 1, 2))


def test_differences_are_between_runs_of_a_planned_seed():
    claim = make_claim(
        **PLAN,
        comparisons=(
            Comparison('', 'b', 'a'),
            Comparison('', 'b', 'a', lower=True),
            Comparison('', ('b', 'b'), ('a', 'a:accuracy')),
            Comparison('', 'b', 'a', metric='loss'),
        ),
    )
    rows = rows_of(claim, a=[80, 82, 79, 70], b=[81, 83.1, 79.9, 90])
    tests = report.Results('x', claim, rows).tests()
    assert [test.seeds for test in tests] == [3, 3, 3, 0]
    assert [test.mean for test in tests[:3]] == pytest.approx([1, -1, 2])


def test_networks_that_are_alike_share_their_noise():
    networks = {name: Training(VIT, rate=rate) for rate, name in enumerate('abcd', 1)}
    values = dict(a=[80, 82, 79, 75], b=[81, 83, 80, 99], c=[80, 90, 70], d=[1])
    for row in (rows := rows_of(make_claim(networks=networks), **values)).values():
        row.metrics['validation'] = row.metrics['accuracy']
    alone = {name: (name,) for name in 'ab'} | dict(best=('c', 'd'))
    settings = dict(networks=networks, **PLAN)
    settings['comparisons'] = (
        Comparison('', 'b', 'a'),
        Comparison('', ('b', 'b'), ('a', 'a')),
    )

    def halves(**others) -> list[float]:
        claim = make_claim(**settings | others)
        return [test.half for test in report.Results('x', claim, rows).tests()]

    # By hand: 4.9103 in the seeds that all have, with 4 degrees of freedom.
    half = 2.77645 * (2 / 3) ** 0.5 * 4.9103
    expected = pytest.approx([half, 2**0.5 * half], rel=1e-4)
    assert halves(choices=alone, alike=(('a', 'b', 'c'),)) == expected
    assert halves(choices=alone, alike=()) == pytest.approx([0, 0], abs=1e-9)


def test_the_page_has_verdicts_powers_and_plots(tmp_path):
    claim = make_claim(**PLAN)
    rows = rows_of(claim, a=[80, 82, 79], b=[81, 83.1, 79.9])
    short = make_claim(
        networks=dict(c=Training(VIT, images=32)), alike=(), comparisons=()
    )
    rows |= rows_of(short, c=[10, 90])
    page = f'# Head\n{report.BEGIN}former{report.END}tail\n'
    text = report.page_text(page, {'noise': claim, 'y': make_claim(metric='z')}, rows)
    assert text.startswith('# Head\n') and text.endswith('tail\n')
    assert 'former' not in text
    assert '1 of 1 comparisons are decided (holds 1, not run yet 1)' in text
    assert '| noise | b over a | +1±0.25 | points | 3 | holds |' in text
    # a: 1 + 1.67^2 + 1.33^2 = 4.67; b: 0.11 + 3.14 + 2.05 = 5.31; over 2 + 2.
    head = r'\| 102,400 \| 80.33 \| 2 \| 6 \| 1.58 \| +\d% \| \d+% \|'
    assert len(re.findall(head, text)) == 1
    assert text.count('![]') == 1 and '![](noise.png)' in text
    assert report.page_text(text, {'noise': claim}, {}).count('noise') == 0
    assert not report.Results('x', claim, rows_of(claim, a=[80, 82])).is_shown()
    alone = make_claim(comparisons=())
    assert report.Results('x', alone, rows_of(alone, a=[80])).is_shown()
    report.draw(report.Results('noise', claim, rows), tmp_path / 'a.png')
    assert (tmp_path / 'a.png').stat().st_size > 1000


def test_each_run_is_of_a_network_of_today():
    ours = {each.hash for claim in CLAIMS.values() for each in claim.networks.values()}
    assert {key for key, _ in read_rows(runner.ROWS)} <= ours


@pytest.mark.slow  # it draws lots for half a minute
def test_our_page_is_up_to_date_and_short():
    page, rows = (report.FOLDER / 'README.md').read_text(), read_rows(runner.ROWS)
    assert report.page_text(page, CLAIMS, rows) == page
    prose = [line for line in page.splitlines() if not line.startswith('|')]
    assert sum(bool(re.search(r'\w', w)) for p in prose for w in p.split()) <= 677
    pictures = {path.name for path in report.FOLDER.glob('*.png')}
    assert pictures == set(re.findall(r'!\[\]\((.+?)\)', page))
