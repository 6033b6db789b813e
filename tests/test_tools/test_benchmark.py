"""tools/benchmark: what it measures, and that each tool's csv is complete."""

import re

import pytest
import torch

from tools.benchmark import measure, model, op, operators, plot
from tools.benchmark.tolerances import assert_close, run_with_grads

ABOUT = {'machine', 'threads', 'torch', 'triton', 'mmattn', 'commit', 'date', 'dtype'}
DETECTOR = """
_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'
model = dict(
    backbone=dict(_delete_=True, type='mmattn.IViT', arch=ARCH),
    neck=dict(in_channels=DIMS),
    roi_head=dict(bbox_head=dict(fc_out_channels=64)),
    train_cfg=dict(
        rpn_proposal=dict(max_per_img=50), rcnn=dict(sampler=dict(num=16))))
"""
NARROW_ARCH = 'dict(embed_dims=(8, 16, 32, 64), depths=(1, 1, 1, 1), num_heads=(2, 4))'
NARROW = DETECTOR.replace('ARCH', NARROW_ARCH).replace('DIMS', '[8, 16, 32, 64]')
DEEP = NARROW.replace('(1, 1, 1, 1)', '(2, 2, 2, 2)')


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """Timings of small things wait for each other where the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cases_of(name: str, *problem) -> dict[str, operators.Case]:
    made = operators.load(name).cases(*problem)
    backend = re.compile(r' \((cpp|torch|reference)\)')
    return {backend.sub('', case.method): case for case in made}


@pytest.mark.parametrize('name', operators.OPERATORS)
def test_operator_rows_are_complete(tmp_path, name):
    path, operator = tmp_path / 'op.csv', operators.load(name)
    sides = (4, 5) if name == 'landmark_attention' else (4,)
    options = ['--quick', '--sides', *map(str, sides), '--csv', str(path)]
    assert op.main([name, *options]) == 0
    rows = measure.read_csv(path)
    expected = {
        (case.method, str(side**2), which)
        for which in operators.PASSES
        for side in sides
        for case in op.cases_of(operator, which, (side, 1, 'cpu', torch.float32))
    }
    peaks = {(r['method'], r['tokens'], r['pass']): float(r['peak_mib']) for r in rows}
    assert set(peaks) == expected and len(rows) == len(expected)
    for row in rows:
        assert float(row['ms']) > 0 and not row['note']
        assert row.keys() >= ABOUT and row['torch'] == torch.__version__
        is_baseline = row['method'] == operator.BASELINE
        assert float(row['speedup']) == 1 if is_baseline else float(row['speedup']) > 0
    for (method, tokens, which), peak in peaks.items():  # a backward is timed
        assert peak < peaks.get((method, tokens, f'{which}+backward'), peak + 1)


def test_results_that_should_be_equal_are_compared():
    ours, _, definition, *_ = operators.load('landmark_attention').cases(
        5, 1, 'cpu', torch.float32
    )
    assert op.check([ours, definition], 'forward+backward', torch.float32) == {}
    wrong = op.dataclasses.replace(ours, call=lambda *x: 1.01 * ours.call(*x))
    with pytest.raises(AssertionError, match='landmark_attention'):
        op.check([wrong, definition], 'forward', torch.float32)
    # A compiler's code is not ours to mend: its row says that it differs.
    wrong = op.dataclasses.replace(wrong, compiled=True)
    notes = op.check([wrong, definition], 'forward', torch.float32)
    assert notes[ours.method].startswith('result 0: ')


@pytest.mark.parametrize(
    'name, peer, same_as',
    [
        ('landmark_attention', 'dense_attention', 'scaled_dot_product_attention'),
        ('masked_attention', 'unfold', 'masked_attention (definition)'),
        (
            'neighborhood_attention',
            'scaled_dot_product_attention',
            'neighborhood_attention (definition)',
        ),
    ],
)
def test_peers_compute_the_same(name, peer, same_as):
    cases = cases_of(name, (5, 4), 2, 'cpu', torch.float64)
    (out, grads), (actual, actual_grads) = (
        run_with_grads(cases[method].call, cases[method].tensors)
        for method in (same_as, peer)
    )
    assert_close('out', out, actual)
    for expected, grad in zip(grads, actual_grads, strict=True):
        assert_close('grad', expected, grad)


def test_model_rows_are_complete(tmp_path):
    path = tmp_path / 'models.csv'
    options = ['--quick', '--models', 'ivit_t', 'resnet18', '--baseline', 'resnet18']
    assert model.main([*options, '--csv', str(path)]) == 0
    rows = measure.read_csv(path)
    keys = [(row['model'], row['pass']) for row in rows]
    names = 'ivit_t', 'resnet18'
    assert keys == [(name, which) for which in model.PASSES for name in names]
    for row in rows:
        assert float(row['images_per_s']) > 0
        assert row['memory_format'] in ('contiguous', 'channels_last')
        assert row.keys() >= ABOUT | {'timm', 'size', 'batch'}
        assert row['model'] != 'resnet18' or float(row['speedup']) == 1
        assert bool(row['product_share']) == (row['pass'] == 'inference')
    assert [row['params_m'] for row in rows[:2]] == ['27.41', '11.69']
    # A training step has the gradients, and what they are made from.
    for inference, training in zip(rows[:2], rows[2:], strict=True):
        gradients = float(training['params_m']) * 4e6 / 2**20
        assert float(training['peak_mib']) > gradients > float(inference['peak_mib'])


def test_step_rows_are_complete(tmp_path):
    from tools.benchmark import train_step

    (tmp_path / 'deep.py').write_text(DEEP)
    (tmp_path / 'narrow.py').write_text(NARROW)
    path = tmp_path / 'train_step.csv'
    options = ['--config', tmp_path / 'deep.py', '--peers', tmp_path / 'narrow.py']
    options = ['--quick', *options, '--csv', path]
    assert train_step.main(list(map(str, options))) == 0
    rows = measure.read_csv(path)
    assert [row['config'] for row in rows] == ['deep', 'narrow']
    for row in rows:
        phases = [float(row[f'{phase}_ms']) for phase in train_step.PHASES]
        assert min(phases) > 0
        assert sum(phases) == pytest.approx(float(row['step_ms']), rel=0.01)
        assert float(row['peak_mib']) > float(row['params_m']) * 4e6 / 2**20
        assert row.keys() >= ABOUT | {'mmdet', 'size', 'batch'}
    assert float(rows[1]['speedup']) == 1
    assert float(rows[0]['params_m']) > float(rows[1]['params_m'])
    assert plot.main([str(path)]) == 0
    assert train_step.step_of_median_length([[1, 5], [4, 1], [2, 1], [0, 9]]) == [4, 1]


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['--device', 'cuda'], 'no CUDA device'),
        (['swin.py'], "operator: 'swin.py' is neither a .py file nor one of"),
        (['lisa_block', '--sides', '5x3'], 'runs on square maps, got'),
        (['masked_attention', '--sides', '0x3'], "invalid parse_side value: '0x3'"),
        (['--sides', '5', '--batch', '1', '2'], '--batch: 1 sides, got [1, 2]'),
    ],
)
def test_bad_arguments_are_named(monkeypatch, capsys, args, message):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(SystemExit):
        op.main(args)
    assert message in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
def test_device_times_and_floors(tmp_path):
    path = tmp_path / 'op.csv'
    options = ['--quick', '--device', 'cuda', '--dtype', 'bfloat16', '--sides', '28']
    op.main([*options, '--csv', str(path)])
    for row in measure.read_csv(path):
        assert 0 < float(row['floor_ms']) < float(row['graph_cold_ms'])
        assert 0 < float(row['floor_fraction']) < 1
        assert float(row['graph_ms']) <= 1.5 * float(row['ms'])
        assert row['bound'] in ('bytes', 'flops')
