"""The sweep over stock configs: resumption, limits, reasons, table and a sample."""

import copy
import json
import time
from pathlib import Path

import pytest

from tools.dev import stock_models, stock_table
from tools.dev import sweep_stock_configs as sweep

SAMPLE = {
    'mmdet': ['retinanet/retinanet_r18_fpn_1x_coco.py'],
    'mmseg': ['bisenetv1/bisenetv1_r18-d32_4xb4-160k_cityscapes-1024x1024.py'],
    'mmpretrain': ['lenet/lenet5_mnist.py'],
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


def entry(name, *configs, package='mmdet'):
    return {'model': name, 'package': package, 'configs': list(configs)}


def test_weights_and_synchronization_do_not_distinguish_models():
    other = copy.deepcopy(MODEL)
    del other['pretrained'], other['backbone']['init_cfg']
    other['backbone']['norm_cfg']['type'] = 'BN'
    deeper = copy.deepcopy(MODEL)
    deeper['backbone']['depth'] = 101

    def name(model):
        model = stock_models.prepared(model, 64, Path())
        return stock_models.digest('mmdet', model)

    assert name(MODEL) == name(other) != name(deeper)
    prepared = stock_models.prepared(MODEL, 64, Path())
    assert stock_models.digest('mmseg', prepared) != name(MODEL)
    assert prepared['test_cfg'] == {'nms_pre': 50, 'max_per_img': 15, 'score_thr': 0.0}
    assert MODEL['pretrained'] == 'b'


@pytest.mark.parametrize(
    ('kind', 'text', 'reason', 'detail'),
    [
        (NotImplementedError, "mmattn does not provide 'nms'.", 'operator', 'nms'),
        (ImportError, "No module named 'ldm.util'", 'dependency', 'ldm'),
        (RuntimeError, 'lap is not installed, please', 'dependency', 'lap'),
        (ImportError, 'by `pip install "mm[all]"`', 'dependency', 'mm[all]'),
        (ImportError, 'please install Detectron2.', 'dependency', 'detectron2'),
        (
            *(AttributeError, 'it has no attribute batch_encode_plus'),
            *('dependency', 'transformers<5'),
        ),
        (OSError, "couldn't connect to", 'download', "OSError: couldn't connect to"),
        (OSError, 'the sweep downloads nothing, got host a.ai', 'download', 'a.ai'),
        (MemoryError, '', 'memory', 'MemoryError: '),
        (RuntimeError, "can't allocate memory", 'memory', 'RuntimeError: can'),
        (NotImplementedError, "it doesn't support to train", 'design', 'NotImpl'),
        (NotImplementedError, 'later', 'error', 'NotImplementedError: later'),
        (RuntimeError, 'shapes\ndiffer', 'error', 'RuntimeError: shapes differ'),
    ],
)
def test_reasons(kind, text, reason, detail):
    found = stock_table.classify(kind(text))
    assert found[0] == reason
    assert found[1].startswith(detail)


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


@pytest.mark.parametrize(
    ('work', 'reason', 'detail'),
    [
        (busy, 'time', 'more than 1 s of CPU time'),
        (hungry, 'memory', ''),
        (broken, 'killed', 'exit status 1'),
    ],
    ids=lambda value: getattr(value, '__name__', ''),
)
def test_limits(work, reason, detail):
    result = sweep.in_child(work, (0.5, 1))
    assert result['reason'] == reason
    assert detail in result['detail']
    assert result['passed'] == (['build'] if work in (busy, broken) else [])
    assert ('no model' in result.get('trace', '')) == (work is broken)


def test_table_counts_configs():
    table = stock_table
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
    rows = table.by_method(table.rows_of(entries, done))
    assert table.count(rows) == 8
    text = table.page(rows)
    assert '7 models stand for 8 configs' in text
    # tried, builds, steps, predicts, passing, and shares of those tried and able
    counts = '8 | 7 | 5 | 3 | 4 | 4 | 57.1 % | 6 | 66.6 % | 5 | 80.0 %'
    assert f'| mmdet | {counts} |' in text
    assert 'All configs pass: fcos 2, gfl 1, sort 1.' in text
    assert '| carafe | 1 | 1 | 0 | 0 | 1 x operator: carafe |' in text
    assert '| ssd | 1 | 0 | 0 | 0 | 1 x package: mmdet/a.py:3 |' in text
    assert '| yolo | 1 | 0 | 0 | 0 | 1 x not reached |' in text
    assert '| operator | 1 |' in text and '`carafe` (1)' in text
    assert 'a CPU' in text


def test_committed_page_follows_from_its_csv():
    rows = stock_table.read(sweep.ROOT / 'docs/stock_configs.csv')
    assert (sweep.ROOT / 'docs/stock_configs.md').read_text() == stock_table.page(rows)


def run_sweep(folder, *arguments) -> list[dict]:
    results = folder / 'stock_configs.jsonl'
    assert sweep.main(['--results', str(results), *arguments]) == 0
    return list(sweep.latest(results).values())


def test_sample_of_stock_configs(tmp_path):
    plan = tmp_path / 'stock_configs_plan.jsonl'
    entries = [
        entry(path, path, package=package)
        for package, paths in SAMPLE.items()
        for path in paths
    ]
    plan.write_text(''.join(json.dumps(one) + '\n' for one in entries))
    results = run_sweep(tmp_path)
    assert [one.get('reason') for one in results] == [None] * len(entries), results
    assert all(one['passed'] == ['build', 'step', 'predict'] for one in results)
    run_sweep(tmp_path, '--table', '--docs', str(tmp_path))
    assert '100.0 %' in (tmp_path / 'stock_configs.md').read_text()
