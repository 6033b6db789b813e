"""The benchmarks of exported models."""

import pytest
from torch import nn

from tools.benchmark import onnx_memory, onnx_model, onnx_operators, plot
from tools.benchmark.measure import read_csv


@pytest.mark.slow
def test_both_runtimes_are_measured_and_drawn(tmp_path):
    path = tmp_path / 'onnx_cpu.csv'
    models = ['resnet18', 'mobilenetv3_small_050']
    command = ['--quick', '--models', *models]
    command += ['--baseline', 'resnet18', '--csv', str(path)]
    assert onnx_model.main(command) == 0
    rows = read_csv(path)
    assert [(r['model'], r['pass']) for r in rows] == [
        (model, runtime) for runtime in ('ONNX Runtime', 'PyTorch') for model in models
    ]
    assert all(0 < float(r['difference']) < 1e-4 for r in rows[:2])
    assert rows[0]['speedup'] == '1.0' and float(rows[1]['speedup']) > 1
    ratio = float(rows[0]['images_per_s']) / float(rows[2]['images_per_s'])
    assert float(rows[0]['over_pytorch']) == pytest.approx(ratio, rel=0.02)
    assert plot.draw(path).name == 'onnx_cpu.png'


class Dense(nn.Module):
    def forward(self, x):
        tokens = x.flatten(1, 2)
        return ((tokens @ tokens.mT).softmax(-1) @ tokens).view_as(x)


@pytest.mark.slow
def test_memory_of_exported_layers_grows_linearly(tmp_path, monkeypatch):
    monkeypatch.setitem(onnx_memory.LAYERS, 'dense', Dense)
    path = tmp_path / 'memory.csv'
    assert onnx_memory.main(['--quick', '--csv', str(path)]) == 0
    rows = read_csv(path)
    assert [row['growth'] for row in rows[::2]] == ['1.0'] * len(onnx_memory.LAYERS)
    growth = {row['layer']: float(row['growth']) for row in rows[1::2]}
    assert growth.pop('dense') > 4
    assert all(0.5 < value < 1.5 for value in growth.values()), growth


@pytest.mark.slow
def test_operators_are_measured_beside_those_of_onnx(tmp_path):
    path = tmp_path / 'operators.csv'
    assert onnx_operators.main(['--quick', '--csv', str(path)]) == 0
    rows = read_csv(path)
    assert len(rows) == 12 and len({row['case'] for row in rows}) == 4
    for ours, other, pytorch in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert other['speedup'] == '1.0' and pytorch['form'] == 'PyTorch'
        ratio = float(other['ms']) / float(ours['ms'])
        assert float(ours['speedup']) == pytest.approx(ratio, rel=0.02)
        assert all(0 < float(row['error']) < 1e-5 for row in (ours, other, pytorch))
