"""tools/evidence: claims, and series of runs that are interrupted."""

import json
from pathlib import Path

import pytest

for name in ('mmpretrain', 'scipy'):
    pytest.importorskip(name)

from evidence_claims import METRIC, VIT, make_claim, make_run  # noqa: E402

from tools.evidence import paired_tests, report, run_rows  # noqa: E402
from tools.evidence import run as runner  # noqa: E402
from tools.evidence.claim import Variant, claim_names, load_claim  # noqa: E402


@pytest.mark.parametrize('name', claim_names())
def test_claims_load_and_their_variants_differ(name):
    claim = load_claim(name)
    hashes = [claim.config_hash(variant) for variant in claim.variants]
    assert len(set(hashes)) == len(hashes)
    assert len(claim.seeds) >= paired_tests.FEWEST


def test_the_hash_is_of_what_decides():
    def hash_of(**options) -> str:
        variants = {'a': Variant(VIT, options)}
        return make_claim(variants=variants, comparisons=(), alike=()).config_hash('a')

    plain = hash_of()
    assert hash_of(**{'randomness.seed': 7, 'work_dir': 'x'}) == plain
    assert hash_of(**{'default_hooks.logger.interval': 7}) == plain
    changed = {
        'optim_wrapper.optimizer.lr': 1.0,
        'model.backbone.arch.depth': 3,
        'train_dataloader.batch_size': 8,
        'train_cfg.max_iters': 8,
    }
    hashes = {hash_of(**{key: value}) for key, value in changed.items()}
    assert len(hashes | {plain}) == 5


class Trainer:
    """Stand in for train.py: log two losses and a metric, or end at once."""

    def __init__(self):
        self.commands, self.fails = [], 0

    def __call__(self, series, command, log):
        self.commands.append(command)
        work_dir = Path(command[command.index('--work-dir') + 1])
        lines = [dict(step=20 * i, loss=2 / i, time=0.1 * i) for i in (1, 2)]
        if not self.fails:
            lines += [{METRIC: 80 + len(self.commands), 'time': 1, 'step': 800}]
        folder = work_dir / f'{len(self.commands)}' / 'vis_data'
        folder.mkdir(parents=True)
        text = ''.join(json.dumps(line) + '\n' for line in lines)
        (folder / 'scalars.json').write_text(text + '{"step": 4')
        (work_dir / 'last_checkpoint').write_text('a.pth')
        if self.fails:
            self.fails -= 1
            raise runner.FailedRun('killed')


@pytest.fixture
def series(tmp_path, monkeypatch):
    """Return a call of run.py, of the claim above, and its trainer."""
    trainer = Trainer()
    claim = make_claim()
    monkeypatch.setattr(runner, 'load_claim', lambda name: claim)
    monkeypatch.setattr(report, 'load_claim', lambda name: claim)
    monkeypatch.setattr(runner.Series, 'start', lambda *args: trainer(*args))
    about = dict(commit='abc', machine='M', torch='2', date='today')
    monkeypatch.setattr(runner, 'about_runs', lambda *args: about)

    def call(*args):
        folders = ['--tables', str(tmp_path), '--work-dirs', str(tmp_path / 'runs')]
        runner.main(['x', *folders, *map(str, args)])

    return call, trainer


def keys(folder: Path) -> list[tuple[str, int]]:
    return [run.key[:2] for run in run_rows.read_runs(folder / 'x.csv')]


def test_a_series_pairs_the_seeds_and_is_done_once(series, tmp_path, capsys):
    call, trainer = series
    call('--seeds', 0, 1)
    order = [('two', 0), ('eight', 0), ('two', 1), ('eight', 1)]
    assert keys(tmp_path) == order
    call('--seeds', 0, 1)
    assert len(trainer.commands) == 4 and keys(tmp_path) == order
    assert '0 runs done, 0 left of x' in capsys.readouterr().out
    first, *_ = run_rows.read_runs(tmp_path / 'x.csv')
    assert first.metrics == {METRIC: 81}
    facts = first.facts
    assert facts['seconds_per_iteration'] == 0.2 and facts['iterations'] == 800
    assert facts['parameters'] == 116842 and facts['torch']
    curve = run_rows.read_curves(tmp_path / 'x_curves.csv')
    assert [(p['iteration'], p['loss']) for p in curve[:2]] == [(20, 2.0), (40, 1.0)]


def test_only_the_seed_differs_between_the_configs_of_a_variant(series, tmp_path):
    from mmengine.config import Config

    call, trainer = series
    call('--seeds', 3, 4, '--variants', 'two')
    first, second = (
        Config.fromfile(command[1]).to_dict() for command in trainer.commands
    )
    assert first['model']['backbone']['arch']['num_heads'] == 2
    assert [each.pop('randomness')['seed'] for each in (first, second)] == [3, 4]
    assert first == second
    # Threads share the claim.
    assert runner.load_claim('x').variants['two'].resolved.randomness.seed == 0


def test_a_killed_series_resumes_its_run(series, tmp_path):
    call, trainer = series
    trainer.fails = 1
    with pytest.raises(SystemExit, match='run: killed'):
        call('--seeds', 0)
    assert keys(tmp_path) == []
    call('--seeds', 0)
    assert keys(tmp_path) == [('two', 0), ('eight', 0)]
    assert ['--resume' in command for command in trainer.commands] == [0, 1, 0]
    assert trainer.commands[0][1] == trainer.commands[1][1]


def test_stale_rows_are_reported_and_not_used(series, tmp_path, capsys):
    call, trainer = series
    run_rows.add_run(tmp_path / 'x.csv', make_run(config_hash='earlier'))
    call('--seeds', 0)
    assert "stale: ('eight', 0, 'earlier')" in capsys.readouterr().out
    run_rows.add_run(tmp_path / 'x.csv', make_run(config_hash='another'))
    results = report.load_results('x', tmp_path)
    assert results.values('eight', METRIC) == {0: 82} and results.stale == 2
    assert '2 rows of earlier configs' in report.provenance(results)
