"""Images of five channels in 16 bits, from the check of the data to the ONNX file."""

from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
import torch
from mmengine.registry import MODELS
from refusals import refuses
from tool_runs import DETECTOR

from mmattn.apis import Predictor
from mmattn.cli import data_check
from mmattn.errors import UserError
from mmattn.export import load
from mmattn.images import read_channels, read_image, shown
from tools.datasets import toy

MANY = (
    DETECTOR.replace("load = dict(type='LoadImageFromFile')", 'load = dict(LOAD)')
    + """
model.update(
    data_preprocessor=dict(
        type='mmattn.DetDataPreprocessor', mean=[30000] * 5, std=[15000] * 5,
        bgr_to_rgb=False, pad_mask=True, pad_size_divisor=32))
model['backbone']['in_channels'] = 5
"""
).replace('LOAD', "type='mmattn.LoadChannels', channels=5")

CHECK = 'many.py', '--decode', '--num-workers', '0'
SEGMENTOR = """
_base_ = 'mmattn::demo/upernet_ivit_n_fashion_scenes.py'
model = dict(
    data_preprocessor=dict(
        type='mmattn.SegDataPreProcessor',
        mean=[500.0] * 4 + [5000.0], std=[100.0] * 4 + [9000.0], bgr_to_rgb=False),
    backbone=dict(in_channels=5), decode_head=dict(num_classes=2))
pipeline = [
    dict(type='mmattn.LoadChannels', channels=5), dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')]
metainfo = dict(classes=['a', 'b'], palette=[[0, 0, 0], [9, 9, 9]])
data = dict(data_root='.', metainfo=metainfo, img_suffix='.tif', pipeline=pipeline)
loader = dict(batch_size=2, num_workers=0, persistent_workers=False, dataset=data)
train_dataloader = loader
val_dataloader = dict(**loader)
test_dataloader = val_dataloader
train_cfg = dict(max_iters=2, val_interval=2)
param_scheduler = []
default_hooks = dict(checkpoint=dict(interval=2))
"""


@pytest.fixture(scope='module')
def many(tmp_path_factory):
    """A folder with a data set of TIFF files, half of them in planes, and a run."""
    folder = tmp_path_factory.mktemp('many')
    toy.make_coco(folder / 'data/coco')
    for number, path in enumerate(sorted(folder.rglob('*.jpg'))):
        image = cv2.imread(str(path)).astype(np.uint16) * 257
        image = np.concatenate([image[..., ::-1], image[..., :2] // 2], 2)
        kinds = dict(planarconfig='separate', data=image.transpose(2, 0, 1))
        if number % 2:
            kinds = dict(planarconfig='contig', data=image)
        tifffile.imwrite(path.with_suffix('.tif'), photometric='minisblack', **kinds)
        path.unlink()
    for path in (folder / 'data/coco/annotations').glob('*.json'):
        path.write_text(path.read_text().replace('.jpg', '.tif'))
    (folder / 'many.py').write_text(MANY)
    return folder


def images(folder: Path) -> list[Path]:
    return sorted((folder / 'data/coco/val2017').iterdir())


def test_the_data_set_is_checked_and_a_file_of_other_channels_named(
    many, monkeypatch, capsys
):
    monkeypatch.chdir(many)
    assert not data_check.main(CHECK)
    assert 'val' in capsys.readouterr().out
    path = images(many)[0]
    whole = path.read_bytes()
    image = np.zeros((120, 160, 4), np.uint16)
    tifffile.imwrite(path, image, photometric='minisblack', planarconfig='contig')
    assert data_check.main(CHECK) == 1
    told = capsys.readouterr()
    assert f'{path.name} has shape (120, 160, 4), and the model takes 5' in told.err
    path.write_bytes(whole)


@pytest.mark.slow
def test_a_detector_trains_predicts_in_tiles_and_is_exported(
    many, monkeypatch, forget_instances
):
    from mmattn.cli import export, report, train
    from mmattn.web import views
    from mmattn.web.photos import read_photo

    monkeypatch.chdir(many)
    monkeypatch.setenv('LOCAL_RANK', '0')
    forget_instances()
    train.main(['many.py'])
    checkpoint = many / 'work_dirs/many/epoch_1.pth'
    predict = Predictor('many.py', str(checkpoint))
    path = images(many)[0]
    found = predict(path)
    pixels = read_channels(path, 5)
    assert len(found) == 5
    np.testing.assert_array_equal(found.boxes, predict(pixels).boxes)
    dim = pixels.copy()
    dim[..., 4] = 0
    assert not np.array_equal(predict(dim).scores, found.scores)
    for picture in (found.draw(pixels), predict(path, tile=64).draw(pixels)):
        assert picture.shape == (*pixels.shape[:2], 3) and picture.dtype == np.uint8
    with pytest.raises(UserError, match=r'shape \(4, 4, 3\), and the model takes 5'):
        predict(np.zeros((4, 4, 3), np.uint8))

    options = '--shape', '96', '96', '--out', 'many.onnx'
    assert export.main(['many.py', '--weights', str(checkpoint), *options]) == 0
    file = load('many.onnx')
    assert file.metadata.channels == 5 and file.metadata.channel_order == 'file'
    for each in images(many)[:2]:
        exported, whole = file(str(each)), predict(each)
        np.testing.assert_allclose(exported.scores, whole.scores, atol=1e-3)
    in_tiles = Predictor('many.onnx')(path, tile=96)
    assert in_tiles.size == pixels.shape[:2]
    report.main(['many.py', '--num-images', '1'])
    assert (many / 'work_dirs/many/predictions.png').stat().st_size > 10_000

    photo = read_photo(path, 1)
    with pytest.raises(UserError, match='million are accepted'):
        read_photo(path, 1e-4)
    assert photo.pixels.shape[2] == 5 and photo.shown().shape[2] == 3
    assert len(views.predict(predict, photo, 0).result) == 5


def test_pixels_are_those_of_the_file(tmp_path):
    image = np.arange(6 * 7 * 5, dtype=np.uint16).reshape(6, 7, 5) * 300
    planes, last = tmp_path / 'planes.tif', tmp_path / 'last.tif'
    kind = dict(photometric='minisblack')
    planar = image.transpose(2, 0, 1)
    tifffile.imwrite(planes, planar, planarconfig='separate', **kind)
    tifffile.imwrite(last, image, planarconfig='contig', **kind)
    for path in (planes, last):
        read = read_channels(path, 5)
        assert read.dtype == np.uint16 and np.array_equal(read, image)
        with pytest.raises(UserError, match=r'planes|last'):
            read_image(path)
    picture = shown(image)
    assert picture.shape == (6, 7, 3) and picture.min() == 0 and picture.max() == 255
    assert np.array_equal(shown(picture), picture)


test_wrong_preprocessors_are_refused = refuses(
    partial(MODELS.get('mmattn.DetDataPreprocessor'), std=[1] * 5),
    (dict(mean=[1, 2]), 'as long, got 2 and 5'),
    (dict(mean=[1] * 5, bgr_to_rgb=True), 'require three channels'),
)


def test_a_preprocessor_of_three_channels_is_mmdets():
    from mmdet.models import DetDataPreprocessor

    settings = dict(mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0], bgr_to_rgb=True)
    ours = MODELS.build(dict(type='mmattn.DetDataPreprocessor', **settings))
    data = dict(inputs=[torch.randint(0, 256, (3, 8, 9), dtype=torch.uint8)])
    expected = DetDataPreprocessor(**settings)(dict(data), False)['inputs']
    assert torch.equal(ours(dict(data), False)['inputs'], expected)


def test_a_segmentor_takes_them(many, monkeypatch, forget_instances, tmp_path):
    from mmattn.cli import train

    labels = np.zeros((64, 96), np.uint8)
    labels[16:40, 32:70] = 1
    image = np.full((64, 96, 5), 500, np.uint16)
    image[..., 4] += np.uint16(20_000) * labels  # the class is there alone
    for split in ('training', 'validation'):
        for kind in ('images', 'annotations'):
            (tmp_path / kind / split).mkdir(parents=True)
        tifffile.imwrite(tmp_path / f'images/{split}/a.tif', image)
        cv2.imwrite(str(tmp_path / f'annotations/{split}/a.png'), labels)
    (tmp_path / 'config.py').write_text(SEGMENTOR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    forget_instances()
    train.main(['config.py', '--work-dir', 'run', '--pretrained', 'none'])
    predict = Predictor('config.py', 'run/iter_2.pth')
    found = predict(tmp_path / 'images/validation/a.tif').labels
    assert found.shape == labels.shape
    tensor = predict.model.prepare(image)
    normalized = predict.model.model.data_preprocessor(
        dict(inputs=[tensor['inputs']], data_samples=[tensor['data_samples']])
    )['inputs']
    normalized = normalized[0].permute(1, 2, 0)
    expected = (image - np.array([500] * 4 + [5000])) / ([100] * 4 + [9000])
    np.testing.assert_allclose(normalized, expected, rtol=1e-5, atol=1e-5)
