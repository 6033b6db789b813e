"""Files in int8 are about as accurate and faster, or are not written."""

import itertools

import numpy as np
import pytest
import torch

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')
pytest.importorskip('onnxscript')

from onnx import numpy_helper  # noqa: E402
from test_comparison import write_test_set  # noqa: E402

from mmattn.export import ExportError, Metadata, api, export_model  # noqa: E402
from mmattn.export import int8 as module  # noqa: E402
from mmattn.export.int8 import check, quantize, speedup  # noqa: E402
from mmattn.export.metadata import KEY  # noqa: E402
from mmattn.export.verification import difference  # noqa: E402

# Products of weights, of which one is in an attention, and of activations.
GRAPH = """
<ir_version: 9, opset_import: ["" : 20]>
attention (float[1, 8, 16] image) => (float[1, 8, 16] out)
    <float[16, 16] Wq, float[16, 16] Wv> {
    [query] q = MatMul (image, Wq)
    [value] v = MatMul (image, Wv)
    t = Transpose <perm = [0, 2, 1]> (q)
    [scores] s = MatMul (q, t)
    p = Softmax (s)
    [mix] out = MatMul (p, v)
}
"""


@pytest.fixture
def content():
    model = onnx.parser.parse_model(GRAPH)
    rng = np.random.default_rng(0)
    for name in ('Wq', 'Wv'):
        weight = rng.normal(0, 0.25, (16, 16)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    (node,) = (each for each in model.graph.node if each.name == 'query')
    node.metadata_props.add(key=module.SCOPES, value="['', 'stages.0.attn', 'q']")
    onnx.helper.set_model_props(model, {KEY: 'described'})
    return model.SerializeToString()


def batches(count=4):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(1, 8, 16, generator=generator).numpy(),) for _ in range(count)]


def quantized_products(content):
    """Return the names of the products whose weights are quantized."""
    graph = onnx.load_from_string(content).graph
    weights = {each.name for each in graph.initializer}
    from_weights = {
        each.output[0]
        for each in graph.node
        if each.op_type == 'DequantizeLinear' and each.input[0] in weights
    }
    products = [each for each in graph.node if each.op_type == 'MatMul']
    assert len(products) == 4
    (mix,) = (each for each in products if each.name == 'mix')
    assert mix.input[0] == 'p'  # of float32
    return {each.name for each in products if each.input[1] in from_weights}


def test_products_of_weights_are_quantized(content):
    found = quantize(content, iter(batches()))
    assert quantized_products(found) == {'query', 'value'}
    props = {
        each.key: each.value for each in onnx.load_from_string(found).metadata_props
    }
    assert props[KEY] == 'described'
    feed = dict(image=batches(1)[0][0])
    sessions = map(onnxruntime.InferenceSession, (found, content))
    (out,), (expected,) = (session.run(None, feed) for session in sessions)
    assert 0 < difference(*map(torch.from_numpy, (out, expected))) < 0.05


def test_nodes_and_modules_stay_in_float(content):
    for pattern in ('query', '*.attn'):
        found = quantize(content, iter(batches()), [pattern])
        assert quantized_products(found) == {'value'}
    with pytest.raises(ExportError, match="no convolution .* is in 'scores'"):
        quantize(content, iter(batches()), ['scores'])
    with pytest.raises(ExportError, match='no node to quantize'):
        quantize(content, iter(batches()), ['*'])


def test_speed_is_that_of_the_second(monkeypatch):
    """The first call of each does not count."""
    clock = [0.0]
    monkeypatch.setattr(module.time, 'perf_counter', lambda: clock[0])
    monkeypatch.setattr(module, 'ROUNDS', 1)

    def call(seconds):
        first = itertools.chain([100.0], itertools.repeat(seconds))
        return lambda _: clock.__setitem__(0, clock[0] + next(first))

    assert speedup(call(3.0), call(2.0), (None,)) == pytest.approx(1.5)


def test_losses_and_slow_files_are_refused():
    text = check(dict(bbox_mAP=(0.741, 0.7361), mIoU=(40.0, 41.0)), 1.31)
    assert 'bbox_mAP 73.61 for 74.10, mIoU 41.00 for 40.00' in text
    for metrics in (dict(bbox_mAP=(0.741, 0.735)), dict(mIoU=(40.0, 39.4))):
        (name,) = metrics
        with pytest.raises(ExportError, match=f'{name} may drop by 0.5 points'):
            check(metrics, 2.0)
    with pytest.raises(ExportError, match=r'1\.29 times as fast .* 1\.3 times is requ'):
        check(dict(mIoU=(40.0, 40.0)), 1.29)
    with pytest.raises(ExportError, match='no annotations'):
        check({}, 2.0)
    with pytest.raises(ExportError, match='mIoU may drop'):
        check(dict(mIoU=(40.0, float('nan'))), 2.0)


def once(function):
    """Return a function that returns its first result again."""
    held = []

    def call(*args):
        if not held:
            held.append(function(*args))
        return held[0]

    return call


@pytest.mark.slow
def test_a_file_is_written_only_after_the_checks(tmp_path, monkeypatch):
    cfg, weights = write_test_set(tmp_path, 'classification')
    out, said = tmp_path / 'model.onnx', []
    settings = dict(shape=(32, 32), int8=True, say=said.append)
    # One export is enough.
    monkeypatch.setattr(api, 'export_graph', once(api.export_graph))
    monkeypatch.setattr(api, 'speedup', lambda *_: 1.2)
    with pytest.raises(ExportError, match='int8 is refused: 1.20 times as fast'):
        export_model(cfg, weights, out, **settings)
    assert not out.exists()
    monkeypatch.setattr(api, 'speedup', lambda *_: 1.5)
    metadata = export_model(cfg, weights, out, **settings)
    assert 'quantizing with 3 images, measuring on 3 of 3 images' in said[-2]
    assert 'top1 100.00 for 100.00' in said[-1]
    model = onnx.load(out)
    assert any(node.op_type == 'QuantizeLinear' for node in model.graph.node)
    (described,) = (x.value for x in model.metadata_props if x.key == KEY)
    assert Metadata.from_json(described) == metadata
    cfg.test_dataloader.dataset.ann_file = 'missing.txt'
    with pytest.raises(ExportError, match='int8 requires images of the test set'):
        export_model(cfg, weights, out, force=True, **settings)


def test_only_onnx_files(tmp_path):
    for name, settings in (
        ('a.pt2', dict(int8=True)),
        ('a.onnx', dict(keep_float='*')),
    ):
        with pytest.raises(ValueError, match='`int8` is for ONNX files'):
            export_model(None, None, tmp_path / name, shape=(64, 64), **settings)
