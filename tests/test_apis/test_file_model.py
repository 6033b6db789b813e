"""Exported files behind the predictor, beside the config that they came from."""

import json

import numpy as np
import pytest
from fresh import MM, run_python, without
from PIL import Image
from small_files import RESIZE, SCORES, write

from mmattn.apis import Predictor

SEGMENTOR = """
<ir_version: 9, opset_import: ["" : 20]>
segmentor (float[B, 3, H, W] image) => (float[B, 3, H, W] logits) {
    logits = Identity (image)
}
"""
SHAPE = 32, 48
RESIZE = RESIZE | dict(scale=[32, 32])


@pytest.fixture
def segmentor(tmp_path):
    """A file whose label is the brightest channel of a pixel."""
    settings = dict(dynamic='size', resize=RESIZE, classes=['red', 'green', 'blue'])
    file = tmp_path / 'model.onnx'
    return write(file, SEGMENTOR, 'segmentation', shape=SHAPE, **settings)


def color_blocks():
    image = np.zeros((64, 96, 3), np.uint8)
    image[:32, :, 0] = image[32:, :48, 1] = image[32:, 48:, 2] = 200
    return image


def test_a_file_gives_the_same_types(segmentor):
    predictor = Predictor(segmentor)
    assert (predictor.task, predictor.classes[2]) == ('segmentation', 'blue')
    found = predictor(color_blocks())
    expected = np.zeros((64, 96), np.uint8)
    expected[32:, :48], expected[32:, 48:] = 1, 2
    assert (found.labels != expected).mean() < 0.05 and found.labels.dtype == np.uint8
    assert predictor.model.prepared_size(color_blocks()) == (21, 32)
    assert repr(str(segmentor)) in repr(predictor)


def test_a_scale_replaces_the_resize_of_the_file(segmentor):
    predictor = Predictor(segmentor)
    image = color_blocks()
    for scale, size in ((1, (64, 96)), (0.5, (32, 48)), (1.5, (96, 144))):
        assert predictor.model.prepared_size(image, scale) == size
    assert not (predictor(image, scale=1).labels != image.argmax(2)).any()


def test_files_run_on_tiles(segmentor):
    image = color_blocks()
    found = Predictor(segmentor)(image, tile=32, overlap=0.25)
    np.testing.assert_array_equal(found.labels, image.argmax(2))


def test_the_command_needs_no_mm_package(segmentor, tmp_path):
    Image.fromarray(color_blocks()).save(tmp_path / 'image.png')
    code = without(*MM) + 'from mmattn.cli.main import main; main()'
    run_python(
        '-c', code, 'predict', segmentor, 'image.png', '--tile', 32, cwd=tmp_path
    )
    found = json.loads((tmp_path / 'predictions/predictions.json').read_text())
    assert {each['category_id'] for each in found['annotations']} == {1, 2, 3}


def test_files_of_a_fixed_shape_have_no_scale(tmp_path):
    file = write(tmp_path / 'f.onnx', SCORES, 'segmentation')
    with pytest.raises(ValueError, match=r'takes only images of \[64, 96\]'):
        Predictor(file)(color_blocks(), scale=1)


def test_cuda_requires_the_onnx_runtime_of_gpus(tmp_path):
    import onnxruntime

    if 'CUDAExecutionProvider' in onnxruntime.get_available_providers():
        pytest.skip('this ONNX Runtime supports CUDA')
    (tmp_path / 'a.onnx').touch()
    with pytest.raises(ValueError, match=r"cannot run on 'cuda:0': .*CPUExecutionProv"):
        Predictor(tmp_path / 'a.onnx', device='cuda:0')


def test_classifiers(tmp_path):
    file = write(tmp_path / 'c.onnx', SCORES, 'classification', classes=list('rgb'))
    found = Predictor(file)([color_blocks()] * 3, batch_size=2)
    assert [each.top(1)[0][0] for each in found] == ['r'] * 3
    assert found[0].size == (64, 96)


def test_backbones_predict_nothing(tmp_path):
    file = write(tmp_path / 'b.onnx', SEGMENTOR, 'features', dynamic='size')
    with pytest.raises(ValueError, match='is a backbone'):
        Predictor(file)


@pytest.mark.parametrize(
    'name, device', [('a.pt2', 'mps'), ('a.pt2', 'cuda'), ('a.onnx', 'mps')]
)
def test_devices(tmp_path, name, device):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f'does not support the device .{device}'):
        Predictor(tmp_path / name, device=device)
