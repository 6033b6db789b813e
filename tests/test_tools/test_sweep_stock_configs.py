"""The sweep over stock configs: models, resumption, limits, reasons, table, sample."""

import copy
import json
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from tool_runs import ROOT

SAMPLE = {
    'mmdet': ['retinanet/retinanet_r18_fpn_1x_coco.py'],
    'mmseg': ['bisenetv1/bisenetv1_r18-d32_4xb4-160k_cityscapes-1024x1024.py'],
    'mmpretrain': ['mobilenet_v2/mobilenet-v2_8xb32_in1k.py', 'lenet/lenet5_mnist.py'],
}
MODEL = {
    'type': 'Detector',
    'backbone': {
        'depth': 50,
        'norm_cfg': {'type': 'SyncBN'},
        'init_cfg': {'type': 'Pretrained', 'checkpoint': 'a'},
    },
    'pretrained': 'b',
    'test_cfg': {'nms_pre': 1000, 'max_per_img': 15, 'score_thr': 0.05},
}


@pytest.fixture(scope='module')
def tools():
    """The modules of the sweep."""
    names = 'stock_data', 'stock_models', 'stock_table', 'sweep_stock_configs'
    return SimpleNamespace(
        **{name: import_module(f'tools.dev.{name}') for name in names}
    )


def entry(name, *configs, package='mmdet'):
    return {'model': name, 'package': package, 'configs': list(configs)}


def test_weights_and_synchronization_do_not_distinguish_models(tools):
    other = copy.deepcopy(MODEL)
    del other['pretrained'], other['backbone']['init_cfg']
    other['backbone']['norm_cfg']['type'] = 'BN'
    deeper = copy.deepcopy(MODEL)
    deeper['backbone']['depth'] = 101

    def name(model):
        model = tools.stock_models.prepared(model, 64, Path())
        return tools.stock_models.digest('mmdet', model)

    assert name(MODEL) == name(other) != name(deeper)
    prepared = tools.stock_models.prepared(MODEL, 64, Path())
    assert tools.stock_models.digest('mmseg', prepared) != name(MODEL)
    assert prepared['test_cfg'] == {'nms_pre': 50, 'max_per_img': 15, 'score_thr': 0.0}
    assert MODEL['pretrained'] == 'b'


def test_learned_proposals_give_a_detection_each(tools):
    test_cfg = {'rpn': None, 'rcnn': {'max_per_img': 300}}
    config = tools.stock_models.Config(
        {'model': {'rpn_head': {'num_proposals': 300}, 'test_cfg': test_cfg}}
    )
    model = tools.stock_models.model_of('mmdet', config, 64)
    assert model['test_cfg']['rcnn']['max_per_img'] == 300


def test_first_model_of_each_method_comes_first(tools):
    entries = [entry(name, f'{name[0]}/{name}.py') for name in ('a1', 'a2', 'b1', 'a3')]
    ordered = tools.stock_models.breadth_first(entries)
    assert [one['model'] for one in ordered] == ['a1', 'b1', 'a2', 'a3']


def test_second_run_continues_and_retries(tools, tmp_path):
    sweep = tools.sweep_stock_configs
    results = tmp_path / 'results.jsonl'
    sweep.append(results, {'model': 'a', 'passed': ['build'], 'reason': 'error'})
    sweep.append(results, {'model': 'b', 'passed': [], 'reason': 'operator'})
    sweep.append(results, {'model': 'c', 'reason': 'error'})
    sweep.append(results, {'model': 'c', 'passed': ['build', 'step', 'predict']})
    with results.open('a') as file:
        file.write('{"model": "d", "pas')  # as a killed run leaves it
    done = sweep.latest(results)
    entries = [entry(name, f'{name}/{name}.py') for name in 'abcde']

    def names(retry=(), patterns=(), chunk=None):
        chosen = sweep.to_do(entries, done, list(retry), list(patterns), chunk)
        return ''.join(one['model'] for one in chosen)

    assert names() == 'de'
    assert names(retry=['operator']) == 'bde'
    assert names(retry=['failed']) == 'abde'
    assert names(['failed'], ['mmdet/b/*', 'mmdet/c/*']) == 'b'
    assert [names(['failed'], chunk=f'{index}/2') for index in (1, 2)] == ['ae', 'bd']


def test_result_after_a_cut_line_is_read(tools, tmp_path):
    results = tmp_path / 'results.jsonl'
    results.write_text('{"model": "d", "pas')
    tools.sweep_stock_configs.append(results, {'model': 'e'})
    assert list(tools.sweep_stock_configs.latest(results)) == ['e']


@pytest.mark.parametrize(
    ('error', 'reason', 'detail'),
    [
        (
            NotImplementedError("mmattn does not provide 'carafe_forward'. Build"),
            'operator',
            'carafe_forward',
        ),
        (ModuleNotFoundError("No module named 'ldm.util'"), 'dependency', 'ldm'),
        (
            RuntimeError('lap is not installed, please install it by: pip install lap'),
            'dependency',
            'lap',
        ),
        (
            ImportError('install it by `pip install "mmpretrain[multimodal]"`'),
            'dependency',
            'mmpretrain[multimodal]',
        ),
        (ImportError('please install Detectron2.'), 'dependency', 'detectron2'),
        (
            AttributeError('BertTokenizer has no attribute batch_encode_plus'),
            'dependency',
            'transformers<5',
        ),
        (
            OSError("We couldn't connect to 'https://huggingface.co' to load"),
            'download',
            'OSError: We',
        ),
        (
            OSError('the sweep downloads nothing, got host mmassets.onedl.ai'),
            'download',
            'mmassets.onedl.ai',
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            'memory',
            'RuntimeError: Def',
        ),
        (
            NotImplementedError('Please train `detector` and `reid` models firstly'),
            'design',
            'NotImpl',
        ),
        (NotImplementedError('later'), 'error', 'NotImplementedError: later'),
        (RuntimeError('shapes\ndiffer'), 'error', 'RuntimeError: shapes differ'),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_reasons(tools, error, reason, detail):
    found = tools.stock_table.classify(error)
    assert found[0] == reason
    assert found[1].startswith(detail)


def raised_through(*files):
    """An error that passes through lines of these files, the innermost one last."""

    def fail():
        raise RuntimeError('no such size')

    for file in reversed(files):
        scope = {'inner': fail}
        exec(compile('def call():\n    inner()', file, 'exec'), scope)
        fail = scope['call']
    with pytest.raises(RuntimeError) as caught:
        fail()
    return caught.value


def test_errors_of_packages_are_told_from_those_behind_operators(tools):
    classify, site = tools.stock_table.classify, '/usr/lib/site-packages'
    head, layers = f'{site}/mmdet/models/head.py', f'{site}/torch/nn/functional.py'
    error = raised_through(f'{site}/mmengine/model/model.py', head, layers)
    place = 'mmdet/models/head.py:2: RuntimeError: no such size'
    assert classify(error) == ('package', place)
    for operator in (f'{site}/mmcv/ops/nms.py', str(ROOT / 'mmattn/compat/a.py')):
        assert classify(raised_through(head, operator, layers))[0] == 'error'
        assert classify(raised_through(operator, head))[0] == 'error'
    assert classify(raised_through(layers))[0] == 'error'


def test_published_table_gives_the_results_that_made_it(tools):
    table = tools.stock_table
    rows = table.read(ROOT / 'docs' / table.CSV)
    entries = {}
    for row in rows:
        empty = entry(row['model'], package=row['package'])
        configs = entries.setdefault(row['model'], empty)['configs']
        configs += [row['first_config']]
        configs += [f'{row["method"]}/~{n}.py' for n in range(1, int(row['configs']))]
    entries = list(entries.values())
    assert table.rows_of(entries, table.results_of(rows, entries)) == rows
    unknown = [{**row, 'reason': table.NOT_REACHED} for row in rows]
    assert table.results_of(unknown, entries) == {}


def test_new_results_replace_published_ones(tools, tmp_path, monkeypatch):
    sweep, table = tools.sweep_stock_configs, tools.stock_table
    entries = [entry('a', 'a/a.py'), entry('b', 'b/b.py')]
    failed = {'passed': [], 'reason': 'error', 'detail': 'old'}
    table.write(tmp_path, entries, {'a': failed, 'b': failed})
    results = tmp_path / 'results.jsonl'
    sweep.append(results, {'model': 'a', 'passed': ['build', 'step', 'predict']})
    monkeypatch.setattr(sweep, 'plan', lambda path: entries)
    files = ['--docs', str(tmp_path), '--results', str(results)]
    assert sweep.main(['--published', '--table', *files]) == 0
    rows = {row['model']: row['reason'] for row in table.read(tmp_path / table.CSV)}
    assert rows == {'a': '', 'b': 'error'}


def test_trial_that_passes_at_a_second_size_passes(tools):
    lines = [
        {'stage': 'build', 'size': 64},
        {'reason': 'error', 'detail': 'too small', 'trace': ''},
        {'stage': 'build', 'size': 224},
        {'stage': 'step'},
    ]
    result = tools.stock_table.gathered(map(dict, lines))
    assert result['passed'] == ['build', 'step']
    assert result['reason'] == 'error'
    result = tools.stock_table.gathered([*lines, {'stage': 'predict'}])
    assert result == {'passed': ['build', 'step', 'predict'], 'size': 224}


def busy(report):
    report(stage='build')
    while True:
        time.process_time()


def hungry(report):
    try:
        bytearray(1 << 31)
    except MemoryError:
        report(reason='memory', detail='')


def broken(report):
    report(stage='build')
    raise SystemExit('no model')


def curious(report):
    import urllib.request

    try:
        urllib.request.urlopen('http://example.com/weights.pth', timeout=2)
    except OSError as error:
        report(reason='error', detail=str(error))


@pytest.mark.parametrize(
    ('work', 'reason', 'detail'),
    [
        (busy, 'time', 'more than 1 s of CPU time'),
        (hungry, 'memory', ''),
        (broken, 'killed', 'exit status 1'),
        (curious, 'error', 'the sweep downloads nothing, got host example.com'),
    ],
    ids=lambda value: getattr(value, '__name__', ''),
)
def test_limits(tools, work, reason, detail):
    result = tools.sweep_stock_configs.in_child(work, (0.5, 1))
    assert result['reason'] == reason
    assert detail in result['detail']
    assert result['passed'] == (['build'] if work in (busy, broken) else [])
    assert ('no model' in result.get('trace', '')) == (work is broken)


def test_table_counts_configs(tools):
    table = tools.stock_table
    entries = [
        entry('good', 'fcos/a.py', 'fcos/b.py', 'gfl/c.py'),
        entry('served', 'carafe/d.py'),
        entry('lap', 'bytetrack/e.py'),
        entry('sort', 'sort/f.py'),
        entry('later', 'yolo/g.py'),
        entry('wrong', 'ssd/h.py'),
    ]
    every = ['build', 'step', 'predict']
    done = {
        'good': {'passed': every, 'parameters': 32_000_000, 'size': 128, 'on': 'a CPU'},
        'served': {'passed': ['build'], 'reason': 'operator', 'detail': 'carafe'},
        'lap': {'passed': [], 'reason': 'dependency', 'detail': 'lap'},
        'sort': {'passed': ['build', 'predict'], 'untrained': 'no loss'},
        'wrong': {'passed': [], 'reason': 'package', 'detail': 'mmdet/a.py:3: no'},
    }
    rows = table.rows_of(entries, done)
    assert table.count(rows) == 8
    text = table.page(rows)
    assert '6 models stand for\n  8 configs' in text
    # tried, builds, steps, predicts, passing, and shares of those tried and able
    counts = '8 | 7 | 5 | 3 | 4 | 4 | 57.1 % | 6 | 66.6 % | 5 | 80.0 %'
    assert f'| mmdet | {counts} |' in text
    assert '| mmdet | fcos | 2 | 2 | 2 | 2 |  |' in text
    assert '| mmdet | gfl | 1 | 1 | 1 | 1 |  |' in text
    assert '| mmdet | carafe | 1 | 1 | 0 | 0 | 1 x operator: carafe |' in text
    assert '| mmdet | sort | 1 | 1 | - | 1 |  |' in text
    assert '| mmdet | yolo | 1 | 0 | 0 | 0 | 1 x not reached |' in text
    assert '| operator | 1 |' in text and '`carafe` (1)' in text
    assert 'a CPU' in text


def test_committed_page_follows_from_its_csv(tools):
    rows = tools.stock_table.read(ROOT / 'docs/stock_configs.csv')
    assert (ROOT / 'docs/stock_configs.md').read_text() == tools.stock_table.page(rows)


@pytest.mark.parametrize('kind', ['FastRCNN', 'FasterRCNN'])
def test_detectors_with_an_rpn_get_no_proposals(tools, kind):
    batch = tools.stock_data.detection({'type': kind, 'num_classes': 1}, 64)
    for sample in batch['data_samples']:
        assert ('proposals' in sample) == (kind == 'FastRCNN')
        assert set(sample.gt_instances.labels.tolist()) == {0}


def run_sweep(tools, folder, *arguments) -> list[dict]:
    results = folder / 'stock_configs.jsonl'
    assert tools.sweep_stock_configs.main(['--results', str(results), *arguments]) == 0
    return list(tools.sweep_stock_configs.latest(results).values())


def test_sample_of_stock_configs(tools, tmp_path):
    plan = tmp_path / 'stock_configs_plan.jsonl'
    entries = [
        entry(path, path, package=package)
        for package, paths in SAMPLE.items()
        for path in paths
    ]
    plan.write_text(''.join(json.dumps(one) + '\n' for one in entries))
    results = run_sweep(tools, tmp_path)
    assert [one.get('reason') for one in results] == [None] * len(entries), results
    assert all(one['passed'] == ['build', 'step', 'predict'] for one in results)
    run_sweep(tools, tmp_path, '--table', '--docs', str(tmp_path))
    assert '100.0 %' in (tmp_path / 'stock_configs.md').read_text()


@pytest.mark.slow
def test_all_stock_configs(tools, tmp_path):
    results = run_sweep(tools, tmp_path)
    rows = tools.stock_table.rows_of(results, {one['model']: one for one in results})
    able = [row for row in rows if row['reason'] not in tools.stock_table.ELSEWHERE]
    good = [row for row in able if not row['reason']]
    assert tools.stock_table.count(good) >= 0.99 * tools.stock_table.count(able)


def test_paths_in_messages_begin_at_the_package(tools, tmp_path):
    folder = tmp_path / 'site-packages/mmdet'
    found = tools.stock_table.without_folders(f"no file '{folder}/a.py' or '/b'")
    assert found == "no file 'mmdet/a.py' or '/b'"


@pytest.mark.parametrize('kind', ['RetinaNet', 'SoftTeacher'])
def test_detectors_predict_one_image(tools, kind):
    model = {'type': kind, 'num_classes': 1}
    _, tested = tools.stock_data.batches('mmdet', None, model, 64)
    assert len(tested['inputs']) == len(tested['data_samples']) == 1


@pytest.mark.parametrize('head', ['RTMDetSepBNHead', 'RTMDetInsSepBNHead'])
def test_rtmdet_has_masks_for_instance_segmentation_alone(tools, head):
    model = {'type': 'RTMDet', 'bbox_head': {'type': head, 'num_classes': 1}}
    batch, _ = tools.stock_data.batches('mmdet', None, model, 64)
    instances = batch['data_samples'][0].gt_instances
    assert ('masks' in instances) == (head == 'RTMDetInsSepBNHead')
