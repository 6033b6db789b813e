"""Predictions of exported models equal the runs that they came from.

`tests/test_real_network.py` tests classifiers.
"""

import numpy as np
import pytest
from predictor_models import noise, write_run

from mmattn.apis import Predictor
from mmattn.export import export_model
from mmattn.results import Detections

# The models pad to multiples of 32, so that these shapes must be rounded up.
SHAPES = dict(detection=(120, 160), segmentation=(48, 64))
IMAGE = noise(90, 121)


def predictors(folder, task, suffix, **settings):
    """Return the predictors of a run and of a file with its model."""
    run, file = write_run(folder / 'run', task), folder / f'model.{suffix}'
    checkpoint = next(run.glob('*.pth'))
    shape = SHAPES[task]
    export_model(run / f'{task}.py', checkpoint, file, shape=shape, **settings)
    return Predictor(run, device='cpu'), Predictor(file, trust_checkpoint=True)


def check_close(found, expected):
    assert type(found) is type(expected) and found.size == expected.size
    if isinstance(expected, Detections):
        assert len(found) == len(expected) and found.names == expected.names
        assert found.classes == expected.classes
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.01)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
        assert expected.masks.any() and (found.masks != expected.masks).mean() < 0.01
    else:
        assert len(expected.present()) > 1
        assert (found.labels != expected.labels).mean() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['onnx', 'pt2'])
@pytest.mark.parametrize('task', SHAPES)
def test_a_file_predicts_what_its_run_does(task, suffix, tmp_path):
    run, file = predictors(tmp_path, task, suffix)
    assert (file.task, file.classes) == (task, run.classes)
    check_close(file(IMAGE), run(IMAGE))
    for pair in zip(file([IMAGE] * 3, batch_size=2), run([IMAGE] * 3), strict=True):
        check_close(*pair)


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['onnx', 'pt2'])
def test_a_file_of_any_size_is_scaled_and_tiled(suffix, tmp_path):
    run, file = predictors(tmp_path, 'segmentation', suffix, dynamic='size')
    check_close(file(IMAGE), run(IMAGE))
    check_close(file(IMAGE, scale=1), run(IMAGE, scale=1))
    check_close(file(IMAGE, tile=64), run(IMAGE, tile=64))
