"""The benchmark of exported models."""

import csv

import onnx_model
import onnx_operators
import plot
import pytest


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
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(r['model'], r['pass']) for r in rows] == [
        (model, runtime) for runtime in ('ONNX Runtime', 'PyTorch') for model in models
    ]
    assert all(0 < float(r['difference']) < 1e-4 for r in rows[:2])
    assert rows[0]['speedup'] == '1.0' and float(rows[1]['speedup']) > 1
    ratio = float(rows[0]['images_per_s']) / float(rows[2]['images_per_s'])
    assert float(rows[0]['over_pytorch']) == pytest.approx(ratio, rel=0.02)
    assert [each.name for each in plot.draw(path)] == ['onnx_cpu.png']


def test_exporting_only_requires_a_folder(capsys):
    with pytest.raises(SystemExit):
        onnx_model.main(['--export-only'])
    assert 'requires --files' in capsys.readouterr().err


@pytest.mark.slow
def test_operators_are_measured_beside_those_of_onnx(tmp_path):
    path = tmp_path / 'operators.csv'
    assert onnx_operators.main(['--quick', '--csv', str(path)]) == 0
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9 and len({row['case'] for row in rows}) == 3
    for ours, other, torch in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert other['speedup'] == '1.0' and torch['operator'] == 'PyTorch'
        ratio = float(other['ms']) / float(ours['ms'])
        assert float(ours['speedup']) == pytest.approx(ratio, rel=0.02)
