"""Segmentors and classifiers of images with five channels of 16 bits."""

import numpy as np
import pytest
import torch
from small_detectors import RESNET
from small_models import built, classifier_config, segmentor_config

from mmattn.apis import Predictor
from mmattn.export import export_model, load

tifffile = pytest.importorskip('tifffile')
pytest.importorskip('onnxruntime')

LOAD = dict(type='mmattn.LoadChannels', channels=5)
VALUES = dict(mean=[2000.0, 9000, 300, 40_000, 5], std=[900.0, 4000, 90, 9000, 2])
BACKBONE = RESNET | dict(in_channels=5)


def classifier():
    cfg = classifier_config()
    cfg.model.backbone = BACKBONE | dict(out_indices=[3])
    cfg.model.data_preprocessor = dict(VALUES, to_rgb=False)
    cfg.test_dataloader.dataset.pipeline = [
        LOAD,
        dict(type='ResizeEdge', scale=72, edge='short'),
        dict(type='CenterCrop', crop_size=(96, 64)),
        dict(type='PackInputs'),
    ]
    return cfg


def segmentor():
    head = dict(type='FPNHead', feature_strides=[4, 8, 16, 32])
    cfg = segmentor_config(head, backbone=BACKBONE)
    cfg.model.data_preprocessor = dict(
        VALUES, type='mmattn.SegDataPreProcessor', test_cfg=dict(size_divisor=32)
    )
    resize = dict(type='Resize', scale=(96, 64), keep_ratio=True)
    pipeline = [LOAD, resize, dict(type='PackSegInputs')]
    cfg.test_dataloader = dict(dataset=dict(type='BaseSegDataset', pipeline=pipeline))
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize('kind', [classifier, segmentor])
def test_files_predict_as_pytorch(kind, tmp_path):
    torch.manual_seed(0)
    cfg, checkpoint, file = kind(), tmp_path / 'model.pth', tmp_path / 'model.onnx'
    torch.save(dict(state_dict=built(cfg).state_dict()), checkpoint)
    rng = np.random.default_rng(0)
    image = rng.normal(VALUES['mean'], VALUES['std'], (13, 20, 5)).clip(0, 65535)
    image = image.astype(np.uint16).repeat(9, 0).repeat(9, 1)
    path, planes = tmp_path / 'image.tif', tmp_path / 'planes.tif'
    tifffile.imwrite(path, image, photometric='minisblack', planarconfig='contig')
    tifffile.imwrite(planes, image.transpose(2, 0, 1), photometric='minisblack')
    metadata = export_model(cfg, checkpoint, file, shape=(64, 96), verify=path)
    assert metadata.channels == 5 and metadata.channel_order == 'file'

    def values(found):
        return found.scores if kind is classifier else found.labels

    expected = values(Predictor(cfg, str(checkpoint))(path))
    dark = image.copy()
    dark[..., 4] = 0
    for run in load(file), Predictor(str(file)):
        for each in path, planes, image:
            found = values(run(each))
            if kind is classifier:
                np.testing.assert_allclose(found, expected, atol=1e-5)
            else:
                assert len(np.unique(found)) > 2
                assert (found == expected).mean() > 0.999
        assert (values(run(dark)) != found).any()
    with pytest.raises(ValueError, match='the model takes 5 channels'):
        run(image[..., :3])
