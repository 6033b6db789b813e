"""The page of `mmattn export --web`: files, and predictions in a headless Chromium."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from predictor_models import noise, write_run
from pycocotools import mask as coco_masks
from small_files import DETECTOR, FEATURES, SCORES, write

import mmattn.export
from mmattn.errors import UserError
from mmattn.export import ExportError, web
from mmattn.export.metadata import Metadata
from mmattn.images import resize
from mmattn.results import coco_document


def test_what_a_page_refuses(tmp_path):
    single = SCORES.replace('[B,', '[1,')
    file = write(tmp_path / 'a.onnx', single, 'classification')
    (tmp_path / 'other.tgz').write_bytes(b'other')
    with pytest.raises(UserError, match='its SHA-256 is [0-9a-f]{64}, expected d2228'):
        web.write_page(file, tmp_path / 'page', archive=tmp_path / 'other.tgz')
    assert not (tmp_path / 'page').exists()
    with pytest.raises(FileExistsError, match='has files'):
        web.write_page(file, tmp_path)
    features = write(tmp_path / 'b.onnx', FEATURES, 'features', dynamic='size')
    with pytest.raises(ExportError, match='the file has feature maps'):
        web.write_page(features, tmp_path / 'page')
    inputs = 'image', 'image_size'
    two = write(tmp_path / 'c.onnx', DETECTOR, 'detection', inputs, batch=2)
    with pytest.raises(ExportError, match='a batch of 1, got 2'):
        web.write_page(two, tmp_path / 'page')
    cubic = dict(factor=2.0, interpolation='bicubic', backend='cv2')
    bad = write(tmp_path / 'd.onnx', single, 'classification', resize=cubic)
    with pytest.raises(ExportError, match="got 'bicubic' of 'cv2'"):
        web.write_page(bad, tmp_path / 'page')
    five = Metadata('classification', ['image'], ['scores'], [64, 96])
    five.mean, five.std, five.channel_order = [0.0] * 5, [1.0] * 5, 'file'
    with pytest.raises(ExportError, match='takes 5 channels'):
        web.check_for_page(five)


@pytest.fixture(scope='module')
def browser():
    sync_api = pytest.importorskip('playwright.sync_api')
    path = shutil.which('chromium') or shutil.which('google-chrome')
    if path is None:
        pytest.skip('there is no chromium')
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=['--no-sandbox'])


CASES = [
    ((50, 70), (64, 90), 'bilinear', 'cv2'),
    ((100, 130), (50, 65), 'bilinear', 'cv2'),
    ((7, 5), (32, 20), 'bilinear', 'cv2'),
    ((100, 130), (33, 47), 'nearest', 'cv2'),
    ((50, 70), (20, 90), 'bilinear', 'pillow'),
    ((50, 70), (64, 30), 'bicubic', 'pillow'),
    ((50, 70), (20, 90), 'box', 'pillow'),
    ((50, 70), (20, 90), 'hamming', 'pillow'),
    ((50, 70), (20, 90), 'lanczos', 'pillow'),
]
RESIZE = """async ([pixels, height, width, size, how]) => {
    const { resize } = await import('./model.js');
    const image = { pixels: Uint8ClampedArray.from(pixels), height, width };
    return Array.from(resize(image, ...size, how).pixels);
}"""
PREDICT = """async () => {
    const { describe, open, predict, readImage } = await import('./model.js');
    const [model, session] = [await describe(), await open()];
    const file = await (await fetch(model.examples[0])).blob();
    const found = await predict(await readImage(file), session, model);
    for (const key of Object.keys(found)) found[key] = Array.from(found[key] ?? []);
    if (found.masks) found.masks = found.masks.map((mask) => Array.from(mask));
    return found;
}"""


@pytest.mark.slow
@pytest.mark.parametrize('task', ['detection', 'segmentation', 'classification'])
def test_predictions_equal_those_of_python(tmp_path, browser, serve, task):
    run = write_run(tmp_path / 'run', task)
    Image.fromarray(noise(90, 70)).save(tmp_path / 'image.png')
    config, weights = run / f'{task}.py', run / 'epoch_2.pth'
    shape = dict(detection=(160, 160), segmentation=(64, 64)).get(task, (32, 32))
    file = tmp_path / 'model.onnx'
    mmattn.export.export_model(config, weights, file, shape=shape)
    web.write_page(file, tmp_path / 'page', examples=[tmp_path / 'image.png'])
    page = browser.new_page()
    problems = []
    page.on('console', lambda message: problems.append(message.text))
    page.on('pageerror', lambda error: problems.append(str(error)))
    page.goto(serve(tmp_path / 'page')[0])
    page.click('#examples button', timeout=60_000)
    page.locator('#status', has_text=' s').wait_for(timeout=60_000)
    for old, new, *how in CASES if task == 'detection' else ():
        image = np.random.default_rng(0).integers(0, 256, (*old, 3), np.uint8)
        how_in_js = dict(zip(('interpolation', 'backend'), how, strict=True))
        found = page.evaluate(RESIZE, [image.ravel().tolist(), *old, new, how_in_js])
        expected = resize(image, new[::-1], *how)
        np.testing.assert_array_equal(np.reshape(found, expected.shape), expected, how)
    found = page.evaluate(PREDICT)
    expected = mmattn.export.load(file)(tmp_path / 'image.png')
    if task == 'segmentation':
        assert np.mean(found['map'] == expected.labels.ravel()) > 0.999
    else:
        np.testing.assert_allclose(found['scores'], expected.scores, 0, 1e-3)
    if task == 'detection':
        assert len(expected) == 6
        np.testing.assert_allclose(found['boxes'], expected.boxes, 0, 1e-3)
        masks = np.reshape(found['masks'], expected.masks.shape)
        assert np.mean(masks == expected.masks) > 0.999
    with page.expect_download() as download:
        page.click('#json')
    written = json.loads(download.value.path().read_text())
    if task == 'classification':
        names = [name for name, _ in expected.top()]
        assert [each['name'] for each in written['classes']] == names
    else:
        shown = expected.above(0.3) if task == 'detection' else expected
        shown = coco_document([replace(shown, source='image.png')], expected.classes)
        assert [written[key] for key in ('images', 'categories')] == [
            shown[key] for key in ('images', 'categories')
        ]
        for entry, other in zip(
            written['annotations'], shown['annotations'], strict=True
        ):
            runs = coco_masks.frPyObjects(entry['segmentation'], 90, 70)
            masks = coco_masks.decode([runs, other['segmentation']])
            assert np.mean(masks[..., 0] == masks[..., 1]) > 0.999
            np.testing.assert_allclose(entry['bbox'], other['bbox'], 0, 1e-3)
            assert entry['id'] == other['id'] and entry['area'] == masks[..., 0].sum()
    assert not problems
