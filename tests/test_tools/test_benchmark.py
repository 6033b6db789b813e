"""tools/benchmark: what it measures, and that each tool's csv is complete and drawn."""

import csv
import dataclasses
import functools
import importlib
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.ops.landmark_attention import mixed_attention_reference
from tools.benchmark.tolerances import assert_close, run_with_grads

for name in ('rich', 'matplotlib', 'mmengine'):
    pytest.importorskip(name)

from tools.benchmark import measure, op, operators, plot  # noqa: E402

ROOT = Path(__file__).parents[2]

LANDMARK = operators.load('landmark_attention')
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
NANO = DETECTOR.replace('ARCH', "'nano'").replace('DIMS', '[32, 64, 160, 256]')
NARROW_ARCH = 'dict(embed_dims=(8, 16, 32, 64), depths=(1, 1, 1, 1), num_heads=(2, 4))'
NARROW = DETECTOR.replace('ARCH', NARROW_ARCH).replace('DIMS', '[8, 16, 32, 64]')


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """Timings of small things wait for each other where the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def read(path: Path) -> list[dict]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope='module', params=operators.OPERATORS)
def operator_csv(request, tmp_path_factory):
    path = tmp_path_factory.mktemp('op') / f'{request.param}.csv'
    assert op.main([request.param, '--quick', '--csv', str(path)]) == 0
    return path


@pytest.fixture(scope='module')
def model_csv(tmp_path_factory):
    pytest.importorskip('mmpretrain')
    path = tmp_path_factory.mktemp('model') / 'models.csv'
    tool = importlib.import_module('tools.benchmark.model')
    options = ['--quick', '--models', 'ivit_t', 'resnet18', '--baseline', 'resnet18']
    assert tool.main([*options, '--csv', str(path)]) == 0
    return path


@pytest.fixture(scope='module')
def step_csv(tmp_path_factory):
    pytest.importorskip('mmdet')
    folder = tmp_path_factory.mktemp('step')
    (folder / 'nano.py').write_text(NANO)
    (folder / 'narrow.py').write_text(NARROW)
    tool = importlib.import_module('tools.benchmark.train_step')
    options = ['--config', folder / 'nano.py', '--peers', folder / 'narrow.py']
    options = ['--quick', *options, '--csv', folder / 'train_step.csv']
    assert tool.main(list(map(str, options))) == 0
    return folder / 'train_step.csv'


def test_operator_rows_are_complete(operator_csv):
    rows = read(operator_csv)
    operator = operators.load(operator_csv.stem)
    expected = {
        (case.method, str(side**2), which)
        for which in operators.PASSES
        for side in op.QUICK_SIDES
        for case in op.cases_of(operator, which, (side, 1, 'cpu', torch.float32))
    }
    keys = [(row['method'], row['tokens'], row['pass']) for row in rows]
    assert set(keys) == expected and len(keys) == len(expected)
    assert {row['tokens'] for row in rows} == {str(s**2) for s in op.QUICK_SIDES}
    for row in rows:
        assert float(row['ms']) > 0 and float(row['peak_mib']) > 0
        assert float(row['speedup']) > 0 and not row['note']
        assert row.keys() >= ABOUT
        assert row['torch'] == torch.__version__ and row['machine']
        if row['method'] == operator.BASELINE:
            assert float(row['speedup']) == 1


def test_a_backward_is_timed(operator_csv):
    rows = read(operator_csv)
    peaks = {(r['method'], r['tokens'], r['pass']): float(r['peak_mib']) for r in rows}
    for (method, tokens, which), peak in peaks.items():
        if which == 'forward' and (method, tokens, 'forward+backward') in peaks:
            assert peak < peaks[method, tokens, 'forward+backward']


def test_what_needs_too_much_is_skipped(tmp_path):
    path = tmp_path / 'op.csv'
    # One 25 x 25 map of 10 heads is 24 KiB: two fit, three do not.
    options = ['--quick', '--sides', '5', '--memory-limit', str(60 / 2**20)]
    op.main([*options, '--csv', str(path)])
    skipped = {(row['method'], row['pass']) for row in read(path) if row['note']}
    assert skipped == {
        ('dense_attention', 'forward+backward'),
        ('dense_attention, interaction', 'forward+backward'),
    }
    for row in read(path):
        assert bool(row['note']) != bool(row['ms'])
        assert not row['note'] or row['note'].startswith('skipped: needs')


@pytest.mark.parametrize(
    'name', ['landmark_attention', 'masked_attention', 'structure_aware_attention']
)
def test_needs_are_what_is_measured(name):
    for case in operators.load(name).cases(24, 1, 'cpu', torch.float32):
        for which, need in case.needs.items():
            peak = measure.peak_memory(functools.partial(case.run, which), 'cpu')
            assert need <= peak <= 1.1 * need, (case.method, which)


def test_results_that_should_be_equal_are_compared():
    cases = LANDMARK.cases(5, 1, 'cpu', torch.float32)
    pair = [case for case in cases if case.same_as or 'definition' in case.method]
    assert op.check(pair, 'forward+backward', torch.float32) == {}
    q, *others = pair[0].tensors
    pair[0] = dataclasses.replace(pair[0], tensors=[1.01 * q, *others])
    with pytest.raises(AssertionError, match='landmark_attention'):
        op.check(pair, 'forward', torch.float32)
    # A compiler's code is not ours to mend: its row says that it differs.
    pair[0] = dataclasses.replace(pair[0], compiled=True)
    assert set(notes := op.check(pair, 'forward', torch.float32)) == {pair[0].method}
    assert notes[pair[0].method].startswith('result 0: ')


@pytest.mark.parametrize('interaction', [False, True])
def test_dense_peers_are_the_definition(interaction):
    *_, dense, mixed = LANDMARK.cases(5, 2, 'cpu', torch.float64)
    case = mixed if interaction else dense
    weights = [] if interaction else [None, None]

    def definition(*tensors):
        return mixed_attention_reference(*tensors, *weights)

    expected = run_with_grads(definition, case.tensors)
    actual = run_with_grads(case.call, case.tensors)
    assert_close('out', expected[0], actual[0])
    for want, got in zip(expected[1], actual[1], strict=True):
        assert_close('grad', want, got)
    if not interaction:
        sdpa = run_with_grads(LANDMARK.sdpa, case.tensors)
        assert_close('sdpa', expected[0], sdpa[0])


def test_least_bytes_are_those_of_the_design():
    """4 N C elements forward and 7 N C backward, beside landmarks and weights."""
    case = LANDMARK.cases(56, 1, 'cpu', torch.bfloat16)[0]
    tokens = 2 * 3136 * 320
    assert case.least_bytes('forward') == pytest.approx(4 * tokens, rel=0.01)
    assert case.least_bytes('forward+backward') == pytest.approx(11 * tokens, rel=0.02)


def test_model_rows_are_complete(model_csv):
    rows = read(model_csv)
    keys = [(row['model'], row['pass']) for row in rows]
    assert keys == [
        (model, which)
        for which in ('inference', 'training step')
        for model in ('ivit_t', 'resnet18')
    ]
    for row in rows:
        assert float(row['images_per_s']) > 0 and float(row['peak_mib']) > 0
        assert row['memory_format'] in ('contiguous', 'channels_last')
        assert row.keys() >= ABOUT | {'timm', 'size', 'batch'}
        if row['model'] == 'resnet18':
            assert float(row['speedup']) == 1
    ours, theirs = rows[:2]
    assert float(ours['params_m']) == pytest.approx(27.41, abs=0.01)
    assert float(theirs['params_m']) == pytest.approx(11.69, abs=0.01)
    # A training step has the gradients, and what they are made from.
    for inference, training in zip(rows[:2], rows[2:], strict=True):
        gradients = float(training['params_m']) * 4e6 / 2**20
        assert float(training['peak_mib']) > gradients > float(inference['peak_mib'])


def test_each_model_has_its_faster_format(monkeypatch):
    tool = importlib.import_module('tools.benchmark.model')
    args = tool.parse_args(['--quick'])
    workload = tool.Workload(torch.nn.Conv2d(3, 8, 3), args)
    for faster in tool.FORMATS:

        def interleave(calls, *, rounds, seconds, faster=faster):
            return {name: measure.Timing([1 + (name != faster)]) for name in calls}

        monkeypatch.setattr(measure, 'interleave', interleave)
        assert tool.fastest_format(workload, 'inference', 1) == faster
    workload.prepare('inference', 'channels_last')
    assert not workload.model.training
    for x in (workload.images, workload.model.weight):
        assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize('which', importlib.import_module('tools.benchmark.model').SETS)
def test_models_exist(which):
    tool = importlib.import_module('tools.benchmark.model')
    names = tool.SETS[which]
    assert tool.BASELINE in names
    for name in names:
        assert plot.is_ours(name) == (tool.config_of(name) is not None), name
        assert plot.is_ours(name) != tool.timm.is_model(name), name


def test_peers_are_built():
    tool = importlib.import_module('tools.benchmark.model')
    for name in {name for names in tool.SETS.values() for name in names}:
        if not plot.is_ours(name):
            with torch.device('meta'):
                tool.create(name, 224)


@pytest.mark.parametrize(
    'params, seconds', [(10, 1.0), (20, 2.0), (40, 4.0), (45, 4.5), (9, 0.9)]
)
def test_time_at_equal_parameters(params, seconds):
    at = importlib.import_module('tools.benchmark.model').seconds_at
    assert at(params, [(30, 3.0), (10, 1.0), (40, 4.0)]) == pytest.approx(seconds)
    assert at(7, [(10, 1.0), (40, 4.0)]) is at(51, [(10, 1.0), (40, 4.0)]) is None
    assert at(10, [(10, 1.0)]) is None


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    problem = 5, 1, 'cpu', torch.float32
    operator = operators.load('masked_attention')
    monkeypatch.setattr(op.shutil, 'which', lambda name: name)
    cases = op.cases_of(operator, 'forward', problem)
    compiled = {case.method for case in cases if case.compiled}
    names = {'flex_attention', 'compiled definition'}
    assert compiled == names | {f'{name}, soft' for name in names}
    monkeypatch.setattr(op.shutil, 'which', lambda name: None)
    rest = {case.method for case in op.cases_of(operator, 'forward', problem)}
    assert rest == {case.method for case in cases} - compiled


@pytest.mark.parametrize(
    'name, config',
    [
        ('ivit_t', 'ivit_t_300e_in1k.py'),
        ('lisanet_i', 'lisanet_i_150e_in1k.py'),
        ('mait_t', 'mait_t_400e_in1k.py'),  # beside mait_t_12l_.. and mait_t_sch1_..
        ('mait', None),
    ],
)
def test_config_of_a_model(name, config):
    path = importlib.import_module('tools.benchmark.model').config_of(name)
    assert (path and path.name) == config


def test_unknown_model_is_named(capsys):
    tool = importlib.import_module('tools.benchmark.model')
    with pytest.raises(ValueError, match="no model 'ivit_x'"):
        tool.main(['--quick', '--models', 'ivit_x'])


def test_step_rows_are_complete(step_csv):
    rows = read(step_csv)
    assert [row['config'] for row in rows] == ['nano', 'narrow']
    for row in rows:
        phases = [
            float(row[f'{phase}_ms'])
            for phase in ('data', 'forward', 'backward', 'optimizer')
        ]
        assert min(phases) > 0
        assert sum(phases) == pytest.approx(float(row['step_ms']), rel=0.01)
        assert float(row['peak_mib']) > float(row['params_m']) * 4e6 / 2**20
        assert row.keys() >= ABOUT | {'mmdet', 'size', 'batch'}
    assert float(rows[1]['speedup']) == 1
    assert float(rows[0]['params_m']) > float(rows[1]['params_m'])


def test_phases_are_those_of_the_step_of_median_length():
    pytest.importorskip('mmdet')
    tool = importlib.import_module('tools.benchmark.train_step')
    steps = [[1, 5], [4, 1], [2, 1], [0, 9]]
    assert tool.step_of_median_length(steps) == [4, 1]
    assert tool.step_of_median_length(steps[:3]) == [4, 1]


def test_peer_differs_by_its_backbone_only():
    pytest.importorskip('mmdet')
    from mmengine.config import Config

    tool = importlib.import_module('tools.benchmark.train_step')
    ours = Config.fromfile(tool.CONFIG)
    ours.model.neck.num_outs = 6  # which the peer's own neck has not
    peer = tool.with_backbone_of(tool.PEERS[0], ours)
    assert peer.model.backbone.type == 'SwinTransformer'
    assert peer.model.neck.in_channels == [96, 192, 384, 768]
    assert ours.model.backbone.type == 'mmattn.IViT'
    for cfg in (ours, peer):
        cfg.model.pop('backbone')
        cfg.model.neck.pop('in_channels')
    assert ours.to_dict() == peer.to_dict()


def assert_drawn(path: Path):
    assert plot.main([str(path)]) == 0
    with Image.open(path.with_suffix('.png')) as picture:
        saturation = np.asarray(picture.convert('HSV'))[..., 1]
    assert (saturation > 100).mean() > 0.005, 'no bar or line is drawn'


def test_operator_csv_is_drawn(operator_csv):
    assert_drawn(operator_csv)


@pytest.mark.parametrize('source', ['model_csv', 'step_csv'])
def test_csv_is_drawn(request, source):
    assert_drawn(request.getfixturevalue(source))


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['--rounds', '0'], 'must be a positive integer'),
        (['--device', 'cuda'], 'no CUDA device'),
        (['swin'], "operator: 'swin' is neither a .py file nor one of"),
        (['swin.py'], "operator: 'swin.py' is neither a .py file nor one of"),
    ],
    ids=['rounds', 'device', 'operator', 'file'],
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
    for row in read(path):
        assert 0 < float(row['floor_ms']) < float(row['graph_cold_ms'])
        assert 0 < float(row['floor_fraction']) < 1
        assert float(row['graph_ms']) <= 1.5 * float(row['ms'])
        assert row['bound'] in ('bytes', 'flops')


@pytest.mark.parametrize('capability', [None, 'avx2'])
def test_each_instruction_set_has_its_compiled_code(monkeypatch, capability):
    for name in ('TORCHINDUCTOR_CACHE_DIR', 'ATEN_CPU_CAPABILITY'):
        monkeypatch.delenv(name, raising=False)
    if capability is not None:
        monkeypatch.setenv('ATEN_CPU_CAPABILITY', capability)
    runpy.run_module('tools.benchmark.measure')
    found = os.environ.pop('TORCHINDUCTOR_CACHE_DIR', None)
    assert found is None if capability is None else found.endswith('inductor_avx2')
