"""tools/benchmark: what it measures, and that each tool's csv is complete."""

import functools
import re
import sys
import time

import pytest
import torch
from mmengine.config import Config

from mmattn.models import HMaiT
from mmattn.ops.common import extension
from mmattn.ops.common.operator import OPERATORS, Operator
from mmattn.registry import MODELS
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


@pytest.mark.parametrize(
    'name', [name for name in OPERATORS if name in operators.OPERATORS]
)
def test_a_row_has_the_backend_that_it_names(monkeypatch, name):
    chosen, choose = [], Operator.choose

    def note(self, *tensors, requested=None):
        chosen.append(requested)
        return choose(self, *tensors, requested=requested)

    monkeypatch.setattr(Operator, 'choose', note)
    cases = operators.load(name).cases(4, 1, 'cpu', torch.float32)
    named = [re.search(rf'^{name} \((\w+)\)', case.method) for case in cases]
    for case, found in zip(cases, named, strict=True):
        if found:
            chosen.clear()
            case.run('forward')
            assert chosen == [found[1].replace('definition', 'reference')]
    cpp = OPERATORS[name].backends.get('cpp')
    expected = {'torch', 'definition'} | (
        {'cpp'} if cpp and not extension.UNAVAILABLE else set()
    )
    assert {found[1] for found in named if found} == expected


def test_compiled_methods_may_be_left_out():
    operator = operators.load('neighborhood_attention')
    problem = 'forward', (7, 1, 'cpu', torch.float32)
    every, rest = (op.cases_of(operator, *problem, compiled) for compiled in (1, 0))
    assert [c.method for c in every if not c.compiled] == [c.method for c in rest]
    assert op.parse_args([]).compiled and not op.parse_args(['--no-compiled']).compiled


def test_what_needs_too_much_is_skipped(tmp_path):
    path = tmp_path / 'op.csv'
    # One 25 x 25 map of 10 heads is 24 KiB: two fit, three do not.
    options = ['--quick', '--sides', '5', '--memory-limit', str(60 / 2**20)]
    op.main([*options, '--csv', str(path)])
    rows = measure.read_csv(path)
    dense = 'dense_attention', 'dense_attention, interaction'
    skipped = {(row['method'], row['pass']) for row in rows if row['note']}
    assert skipped == {(method, 'forward+backward') for method in dense}
    for row in rows:
        assert bool(row['note']) != bool(row['ms'])
        assert not row['note'] or row['note'].startswith('skipped: needs')


@pytest.mark.parametrize(
    'name', ['landmark_attention', 'masked_attention', 'structure_aware_attention']
)
def test_needs_are_what_is_measured(name):
    for case in cases_of(name, 24, 1, 'cpu', torch.float32).values():
        for which, need in case.needs.items():
            peak = measure.peak_memory(functools.partial(case.run, which), 'cpu')
            assert need <= peak <= 1.1 * need, (case.method, which)


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


RATES = dict(bytes=1.0, flops=1.0, vector_flops=1.0, exponentials=1.0)


def test_floors_of_masked_attention():
    """Hard: 4 N C values and 9 keys a query. Full: N^2 exponentials, twice with a
    backward, which it computes again."""
    cases = cases_of('masked_attention', 8, 2, 'cpu', torch.bfloat16)
    values, pairs = 2 * 64 * 96, 2 * 3 * 64**2
    hard, full = cases['masked_attention'], cases['scaled_dot_product_attention']
    floors = op.least_seconds(hard, 'forward', RATES)
    assert floors == {'bytes': 4 * 2 * values, 'flops': 4 * 9 * values}
    assert hard.least_bytes('forward+backward') == 11 * 2 * values
    for which, times in (('forward', 1), ('forward+backward', 2)):
        floors = op.least_seconds(full, which, RATES)
        assert floors['exponentials'] == times * pairs
    assert op.least_seconds(full, 'forward', RATES)['flops'] == 4 * 32 * pairs
    soft = cases['masked_attention, soft']
    assert soft.exponentials['forward'] == pairs and len(soft.tensors) == 4


def test_interpolations_have_the_rate_without_tensor_cores():
    """Ten FLOPs for each channel of each point; values and output, and three numbers
    for each point, are moved once."""
    case = operators.load('ms_deform_attn').cases((8, 6), 1, 'cpu', torch.float32)[0]
    pixels = 8 * 6 + 4 * 3 + 2 * 2 + 1 * 1
    points = pixels * 8 * 4 * 4
    rates = RATES | dict(flops=float('inf'))
    assert op.least_seconds(case, 'forward', rates) == {
        'bytes': 4 * (2 * pixels * 256 + 3 * points),
        'flops': 10 * 32 * points,
    }


def test_first_stage_is_that_of_the_network():
    arch, masked = HMaiT.arch_zoo['tiny'], operators.load('masked_attention')
    assert arch['embed_dims'][0] == masked.HEADS * masked.WIDTH
    assert arch['num_heads'][0] == arch['masked_heads'][0] == masked.HEADS


@pytest.mark.parametrize(
    'side, heads, keys, tables',
    [(7, 16, 49, [13]), (56, 2, 49, [111]), ((50, 84), 8, 1050, [99, 27])],
)
def test_stages_of_deformable_attention(side, heads, keys, tables):
    operator = operators.load('deformable_attention')
    *ours, plain = operator.cases(side, 1, 'cpu', torch.float32)
    assert list(dict.fromkeys(case.tensors[4].shape[1] for case in ours)) == tables
    assert all(case.tensors[1].shape == (1, keys, heads, 32) for case in ours)
    assert plain.tensors[0].shape[1:] == ours[0].tensors[0].shape[1:]


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


def test_maps_are_measured_beside_a_matrix_product(tmp_path, monkeypatch):
    def interleave(calls, clock, **settings):
        for call in calls.values():
            call()
        assert clock is time.process_time
        return {name: measure.Timing([2.0]) for name in calls}

    monkeypatch.setattr(measure, 'interleave', interleave)
    path = tmp_path / 'maps.csv'
    options = ['--preset', 'maps', '--quick', '--memory-format', 'contiguous']
    options += ['--models', 'mmattn_pvt_v2_b0', 'resnet18', '--baseline', 'resnet18']
    assert model.main([*options, '--csv', str(path)]) == 0
    rows = measure.read_csv(path)
    assert [row['clock'] for row in rows] == ['cpu'] * 4
    for row in rows[:2]:
        share = float(row['flops_g']) * 1e9 / model.PRODUCT_SIDE**3
        assert float(row['product_share']) == pytest.approx(share, rel=5e-3)
    network = model.create('mmattn_pvt_v2_b0', (64, 64), maps=True)
    maps = network(torch.ones(1, 3, 64, 64))
    assert [each.shape[2] for each in maps] == [16, 8, 4, 2]


@pytest.mark.parametrize(
    'option, name',
    [*(('--set', name) for name in model.SETS)]
    + [('--preset', name) for name in model.PRESETS],
)
def test_models_exist(option, name):
    args = model.parse_args([option, name])
    assert args.baseline in args.models
    for name in args.models:
        assert plot.is_ours(name) != (
            model.timm.is_model(name) and 'mmattn' not in name
        )
        found = model.config_of(name) or model.timm.is_model(name)
        assert found, name
    assert model.config_of('mait') is None  # beside mait_t_12l_.. and mait_t_sch1_..


@pytest.mark.parametrize(
    'config, methods',
    [
        ('mhsa', ['mhsa (SDPA)', 'mhsa (matmul)']),
        ('interaction', ['mhsa, interaction']),
        ('decomposition', ['mhsa, decomposition']),
        ('decomposition_interaction', ['mhsa, decomposition and interaction']),
        ('imhsa', ['imhsa']),
    ],
)
def test_blocks_of_vit_are_those_of_the_configs(config, methods):
    path = model.CONFIGS / f'vit_t16_{config}_300e_in1k.py'
    settings = Config.fromfile(path).model.backbone | dict(arch='small')
    block = MODELS.build(settings).blocks[5]
    expected = {name: value.shape for name, value in block.named_parameters()}
    blocks = operators.load('vit_block').make_blocks()
    for method in methods:
        found = blocks[method].named_parameters()
        assert {name: value.shape for name, value in found} == expected


def test_presets_are_the_papers_protocols_and_other_options_replace_parts():
    args = op.parse_args(['--preset', 'lisa_tables_4_12'])
    assert (args.operator, args.batch) == ('lisa_block', [32])
    assert args.sides == (7, 14, 28, 56, 84) and args.module.CHANNELS == 192
    args = op.parse_args(['--preset', 'lisa_tables_4_12', '--batch', '2'])
    assert (args.operator, args.batch) == ('lisa_block', [2])
    assert op.parse_args([]).batch == [1]
    args = model.parse_args(['--preset', 'mait_table_5'])
    assert (args.batch, args.size, len(args.models)) == (64, (224, 224), 6)
    args = model.parse_args(['--preset', 'lisa_table_7_384', '--batch', '1'])
    assert (args.batch, args.size) == (1, (384, 384))
    assert args.baseline == args.models[0] == 'swin_base_patch4_window12_384'


def test_models_of_a_gpu_need_no_package_of_openmmlab(monkeypatch):
    for name in ('mmengine', 'mmengine.config', 'mmengine.structures', 'mmpretrain'):
        monkeypatch.setitem(sys.modules, name, None)
    with torch.device('meta'):
        network = model.create('mmattn_pvt_v2_b0', (64, 64))
    assert model.count(network, (64, 64)).params == pytest.approx(3.67e6, rel=1e-3)


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


@pytest.mark.parametrize('whole', [False, True])
def test_peer_differs_by_its_backbone_or_its_model_only(whole):
    from tools.benchmark import train_step

    ours = train_step.Config.fromfile(train_step.CONFIG)
    ours.model.neck.num_outs = 6  # which the peer's own neck has not
    peer = train_step.with_model_of(train_step.PEERS[0], ours, whole)
    assert peer.model.backbone.type == 'SwinTransformer'
    assert peer.model.neck.in_channels == [96, 192, 384, 768]
    assert ours.model.backbone.type == 'mmattn.IViT'
    for cfg in (ours, peer):
        if whole:
            cfg.pop('model')
        else:
            cfg.model.pop('backbone')
            cfg.model.neck.pop('in_channels')
    assert ours.to_dict() == peer.to_dict()


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
