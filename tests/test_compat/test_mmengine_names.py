"""The packages' own inferencers with our configs, names and checkpoints."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

for package in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(package)

from mmdet.apis import DetInferencer  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.infer import BaseInferencer  # noqa: E402
from mmpretrain import ImageClassificationInferencer  # noqa: E402
from mmpretrain.apis.model import ModelHub  # noqa: E402
from mmseg.apis import MMSegInferencer  # noqa: E402
from PIL import Image  # noqa: E402
from predictor_models import CLASSES, noise, write_run  # noqa: E402

import mmattn  # noqa: E402
from mmattn.apis import Predictor  # noqa: E402
from mmattn.compat import mmengine_names  # noqa: E402

ROOT = Path(mmattn.__file__).parents[1]


@pytest.fixture
def image(tmp_path):
    path = tmp_path / 'image.png'
    Image.fromarray(noise(90, 121)).save(path)
    return str(path)


@pytest.fixture
def paths(tmp_path, request):
    """Config and checkpoint of a run, and the prediction of our own predictor."""
    task = request.param
    run = write_run(tmp_path / 'run', task)
    paths = str(run / f'{task}.py'), str(run / 'epoch_2.pth')
    return *paths, Predictor(run, device='cpu')


@pytest.mark.parametrize('paths', ['detection'], indirect=True)
def test_detectors(paths, image):
    config, weights, ours = paths
    inferencer = DetInferencer(config, weights, device='cpu', show_progress=False)
    (found,) = inferencer(image)['predictions']
    expected = ours(image)
    np.testing.assert_allclose(found['bboxes'], expected.boxes, rtol=1e-5)
    np.testing.assert_allclose(found['scores'], expected.scores, rtol=1e-5)
    assert list(inferencer.model.dataset_meta['classes']) == CLASSES['detection']


@pytest.mark.parametrize('paths', ['segmentation'], indirect=True)
def test_segmentors(paths, image):
    config, weights, ours = paths
    inferencer = MMSegInferencer(config, weights, device='cpu', show_progress=False)
    found = inferencer(image)['predictions']
    np.testing.assert_array_equal(found, ours(image).labels)


@pytest.mark.parametrize('paths', ['classification'], indirect=True)
def test_classifiers(paths, image):
    config, weights, ours = paths
    inferencer = ImageClassificationInferencer(config, weights, device='cpu')
    (found,) = inferencer(image)
    np.testing.assert_allclose(found['pred_scores'], ours(image).scores, rtol=1e-5)
    assert found['pred_class'] == ours(image).top(1)[0][0]


@pytest.mark.parametrize(
    'name',
    ['mmattn::mask_rcnn/ivit_t_3x_coco.py', 'mmattn::ivit_t_3x_coco', 'ivit_t_3x_coco'],
)
def test_mmdet_and_mmseg_find_our_names(name):
    lookup = SimpleNamespace(scope='mmdet')
    cfg, weights = BaseInferencer._load_model_from_metafile(lookup, name)
    assert cfg.model.backbone.type == 'mmattn.IViT' and weights is None


@pytest.mark.parametrize(
    'name', ['mmattn::classification/ivit_t_300e_in1k', 'ivit_t_300e_in1k']
)
def test_mmpretrain_finds_our_names(name):
    found = ModelHub.get(name)
    assert found.config.model.backbone.type == 'mmattn.IViT' and found.weights is None


def lookup_of(known):
    """Return a module whose inferencer knows one name, corrected twice."""

    class Inferencer:
        def _load_model_from_metafile(self, model):
            if model != known:
                raise ValueError(f'Cannot find model: {model} in mmdet')
            return 'config', 'weights'

    module = SimpleNamespace(BaseInferencer=Inferencer, Config=Config)
    for _ in range(2):
        mmengine_names.correct_inferencer(module)
    return Inferencer()._load_model_from_metafile


def test_names_of_the_package_are_still_found():
    assert lookup_of('rtmdet-s')('rtmdet-s') == ('config', 'weights')


@pytest.mark.parametrize(
    'name, message',
    [
        ('ivit_t_3x_cocoo', 'Cannot find model.* closest are mask_rcnn/ivit_t_3x_coco'),
        (
            'pvt_t_1x_coco',
            'Cannot find model.* several configs are named pvt_t_1x_coco',
        ),
    ],
)
def test_unknown_names_get_both_answers(name, message):
    with pytest.raises(ValueError, match=message):
        lookup_of('rtmdet-s')(name)


def test_our_prefix_is_not_looked_up_elsewhere():
    with pytest.raises(FileNotFoundError, match='closest are'):
        lookup_of('mmattn::ivit_t_3x_cocoo')('mmattn::ivit_t_3x_cocoo')


@pytest.mark.slow
@pytest.mark.parametrize(
    'make',
    [
        'from mmdet.apis import DetInferencer as I\n'
        "found = I('mask_rcnn_ivit_n_hela', device='cpu').model",
        'from mmseg.apis import MMSegInferencer as I\n'
        "found = I('mmattn::demo/upernet_ivit_n_landcover.py', device='cpu').model",
        'from mmpretrain import ImageClassificationInferencer as I\n'
        "found = I('ivit_t_300e_in1k', pretrained=False, device='cpu').model",
    ],
    ids=['mmdet', 'mmseg', 'mmpretrain'],
)
def test_names_need_no_import_of_mmattn(make):
    """The start-up hook of an installation is enough."""
    code = f'import sys, mmattn_startup\n{make}\nprint(type(found.backbone).__name__)\n'
    done = subprocess.run(
        [sys.executable, '-c', code],
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == 'IViT'
