"""tools/evidence/run.py with tools/train.py: a killed run continues."""

import subprocess
import threading
import time

import numpy as np
import pytest

for name in ('cv2', 'mmpretrain', 'scipy'):
    pytest.importorskip(name)

from idx_files import idx  # noqa: E402

from mmattn.datasets import fashion_mnist  # noqa: E402
from tools.evidence import run as runner  # noqa: E402
from tools.evidence import run_rows  # noqa: E402
from tools.evidence.claim import Claim, Variant  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture
def claim(tmp_path, monkeypatch):
    """Return a claim whose run has six iterations on random images, and two tests."""
    rng = np.random.default_rng(0)
    for images, labels in fashion_mnist.FILES.values():
        (tmp_path / images).write_bytes(idx(rng.integers(256, size=(64, 28, 28))))
        (tmp_path / labels).write_bytes(idx(rng.integers(10, size=64)))
    options = {
        'model.backbone.arch.depth': 1,
        'train_cfg': dict(max_iters=6, val_interval=6),
        'default_hooks.checkpoint.interval': 2,
        'default_hooks.logger.interval': 1,
        'log_processor.window_size': 1,  # of losses that are averaged
        'train_dataloader.batch_size': 4,
        'train_dataloader.dataset.indices': 64,
    }
    for loader in ('train', 'val', 'test'):
        options[f'{loader}_dataloader.dataset.data_root'] = str(tmp_path)
    half = {'half': {'test_dataloader.dataset.indices': 32}}
    config = 'configs/evidence/vit_n_fashion_mnist.py'
    claim = Claim(
        statement='It trains.',
        source='nobody',
        image_shape=(1, 28, 28),
        variants={'vit': Variant(config, options, half)},
        measurements=('head_diversity',),
    )
    monkeypatch.setattr(runner, 'load_claim', lambda name: claim)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    return claim


def start(tmp_path, name: str) -> tuple[run_rows.Run, list[float]]:
    """Run the claim in a folder of its own; return its row and its training losses."""
    tables = tmp_path / name
    folders = ['--tables', str(tables), '--work-dirs', str(tables / 'runs')]
    runner.main(['x', '--seeds', '0', *folders])
    (run,) = run_rows.read_runs(tables / 'x.csv')
    curve = run_rows.read_curves(tables / 'x_curves.csv')
    return run, [(point['iteration'], point['loss']) for point in curve]


def test_a_killed_run_continues(claim, tmp_path, monkeypatch):
    run, losses = start(tmp_path, 'whole')
    assert [iteration for iteration, _ in losses] == [1, 2, 3, 4, 5, 6]
    diversity = {'head_variance', 'map_variance', 'similarity'}
    accuracies = {'accuracy/top1', 'half:accuracy/top1'}
    assert set(run.metrics) == accuracies | diversity

    def killed(*args, **kwargs):
        process = popen(*args, **kwargs)

        def kill():
            while process.poll() is None:
                if list((tmp_path / 'killed').glob('runs/*/iter_2.pth')):
                    return process.kill()
                time.sleep(0.01)

        threading.Thread(target=kill).start()
        return process

    popen = subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setattr(runner.subprocess, 'Popen', killed)
        with pytest.raises(SystemExit, match='ended with -9'):
            start(tmp_path, 'killed')
    assert not (tmp_path / 'killed/x.csv').exists()
    resumed, resumed_losses = start(tmp_path, 'killed')
    assert resumed.metrics == run.metrics
    assert dict(resumed_losses).items() <= dict(losses).items()
    assert resumed_losses[-1] == losses[-1]
