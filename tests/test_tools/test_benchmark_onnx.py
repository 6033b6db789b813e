"""The benchmarks of exported models."""

import csv

import pytest
import torch
from tool_runs import DETECTOR
from torch import nn

from tools.benchmark import onnx_memory, onnx_model, onnx_operators, plot


def read(path) -> list[dict]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_both_runtimes_are_measured_and_drawn(tmp_path):
    pytest.importorskip('onnxscript')
    path, files = tmp_path / 'onnx_cpu.csv', tmp_path / 'files'
    models = ['resnet18', 'mobilenetv3_small_050']
    command = ['--quick', '--models', *models, '--files', str(files)]
    assert onnx_model.main([*command, '--export-only']) == 0
    assert len(list(files.iterdir())) == 2 and not path.exists()
    command += ['--baseline', 'resnet18', '--csv', str(path)]
    assert onnx_model.main(command) == 0
    rows = read(path)
    assert [(r['model'], r['pass']) for r in rows] == [
        (model, runtime) for runtime in ('ONNX Runtime', 'PyTorch') for model in models
    ]
    assert all(0 < float(r['difference']) < 1e-4 for r in rows[:2])
    assert rows[0]['speedup'] == '1.0' and float(rows[1]['speedup']) > 1
    ratio = float(rows[0]['images_per_s']) / float(rows[2]['images_per_s'])
    assert float(rows[0]['over_pytorch']) == pytest.approx(ratio, rel=0.02)
    assert [each.name for each in plot.draw(path)] == ['onnx_cpu.png']


@pytest.mark.slow
def test_detectors_do_the_work_of_trained_ones(tmp_path):
    pytest.importorskip('onnxscript')
    (tmp_path / 'small.py').write_text(DETECTOR)
    path = tmp_path / 'onnx_cpu.csv'
    command = ['--set', 'detectors', '--models', str(tmp_path / 'small.py')]
    command += ['--quick', '--size', '96', '120', '--baseline', 'small']
    assert onnx_model.main([*command, '--csv', str(path)]) == 0
    onnx, pytorch = read(path)
    assert (onnx['model'], onnx['pass'], pytorch['pass']) == (
        'small',
        'ONNX Runtime',
        'PyTorch',
    )
    assert float(onnx['difference']) < 1e-3 and onnx['speedup'] == '1.0'
    assert onnx['size'] == '96 x 120'
    workload = onnx_model.DetectorWorkload(str(tmp_path / 'small.py'), (96, 120))
    assert tuple(workload.inputs[0].shape) == (1, 3, 96, 128)
    assert (workload.inputs[0][..., 120:] == 0).all()
    assert workload.inputs[1].tolist() == [[96, 120]]
    scores = workload.scores(workload.inference())
    assert (scores > 0).all() and scores.max() - scores.min() > 0.01


@pytest.mark.parametrize(
    'options, message',
    [
        (['--export-only'], 'requires --files'),
        (['--models', 'resnet18', 'a.py'], 'all classifiers or all detectors'),
        (['--set', 'detectors', '--batch', '2'], 'must be 1 for detectors, got 2'),
        (['--size', '64', '96'], 'must be a side'),
    ],
    ids=str,
)
def test_options_that_do_not_fit(options, message, capsys):
    with pytest.raises(SystemExit):
        onnx_model.main(options)
    assert message in capsys.readouterr().err


class Dense(nn.Module):
    def forward(self, x):
        tokens = x.flatten(1, 2)
        return ((tokens @ tokens.mT).softmax(-1) @ tokens).view_as(x)


@pytest.mark.slow
def test_memory_of_exported_layers_grows_linearly(tmp_path, monkeypatch):
    pytest.importorskip('onnxscript')
    monkeypatch.setitem(onnx_memory.LAYERS, 'dense', Dense)
    path = tmp_path / 'memory.csv'
    assert onnx_memory.main(['--quick', '--csv', str(path)]) == 0
    rows = read(path)
    assert [row['growth'] for row in rows[::2]] == ['1.0'] * len(onnx_memory.LAYERS)
    growth = {row['layer']: float(row['growth']) for row in rows[1::2]}
    assert growth.pop('dense') > 4
    assert all(0.5 < value < 1.5 for value in growth.values()), growth


@pytest.mark.slow
def test_operators_are_measured_beside_those_of_onnx(tmp_path):
    path = tmp_path / 'operators.csv'
    assert onnx_operators.main(['--quick', '--csv', str(path)]) == 0
    rows = read(path)
    assert len(rows) == 12 and len({row['case'] for row in rows}) == 4
    for ours, other, pytorch in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert other['speedup'] == '1.0' and pytorch['form'] == 'PyTorch'
        ratio = float(other['ms']) / float(ours['ms'])
        assert float(ours['speedup']) == pytest.approx(ratio, rel=0.02)
        assert all(0 < float(row['error']) < 1e-5 for row in (ours, other, pytorch))


def form(error: float):
    return lambda: torch.tensor([1.0, 1 + error])


@pytest.fixture
def inexact(monkeypatch):
    """A function that replaces the cases by one with these errors of its forms."""

    def replace(ours: float, onnx: float):
        forms = {onnx_operators.OURS: form(ours), onnx_operators.ONNX: form(onnx)}
        forms[onnx_operators.TORCH] = form(0)
        case = 'case', forms, torch.ones(2, dtype=torch.float64)
        monkeypatch.setattr(onnx_operators, 'cases', lambda args: [case])

    return replace


def test_an_inexact_operator_of_onnx_is_reported(inexact, tmp_path):
    inexact(ours=0, onnx=0.25)
    path = tmp_path / 'operators.csv'
    assert onnx_operators.main(['--quick', '--csv', str(path)]) == 0
    assert [float(row['error']) for row in read(path)] == [0, 0.25, 0]


def test_a_wrong_operator_of_ours_is_not_measured(inexact, tmp_path):
    inexact(ours=1e-3, onnx=0)
    path = tmp_path / 'operators.csv'
    with pytest.raises(AssertionError, match='case, exported: RMS error'):
        onnx_operators.main(['--quick', '--csv', str(path)])
    assert not path.exists()
