"""Files that `write_predictions` leaves."""

import errno
import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from mmattn.apis.sources import expand, pictures
from mmattn.apis.writing import _Names, write_predictions
from mmattn.results import Classification, Detections, Segmentation


class Classifier:
    """Give each image the scores of two classes."""

    task = 'classification'
    classes = ('cell', 'none')

    def stream(self, images, score):
        for name in map(str, images):
            scores = np.array([0.75, 0.25], np.float32)
            yield None, Classification(scores, [*self.classes], source=name)


class Segmentor:
    """Label bright pixels 1."""

    task = 'segmentation'
    classes = ('background', 'cell')

    def stream(self, images, score):
        for picture in pictures(expand(images)[0]):
            labels = (picture.pixels[..., 0] > 100).astype(np.uint8)
            result = Segmentation(labels, [*self.classes], source=picture.source)
            yield picture.pixels, result


@pytest.fixture
def same_names(tmp_path, monkeypatch):
    """Two images and two videos; each pair shares a name."""
    monkeypatch.chdir(tmp_path)
    for value, folder in enumerate('ab'):
        os.mkdir(folder)
        pixels = np.full((96, 160, 3), 200 * value, np.uint8)
        Image.fromarray(pixels).save(f'{folder}/x.png')
        writer = cv2.VideoWriter(
            f'{folder}/x.avi', cv2.VideoWriter_fourcc(*'MJPG'), 10.0, (160, 96)
        )
        writer.write(pixels)
        writer.release()
    return [f'{folder}/x.{suffix}' for folder in 'ab' for suffix in ('png', 'avi')]


def contents(folder):
    files = Path(folder).rglob('*')
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_inputs_of_one_name_get_results_of_their_own(same_names):
    """Results may be written into the folder of the inputs."""
    before = contents('.')
    write_predictions(Segmentor(), same_names, Path('a'))
    after = contents('.')
    assert {name: after[name] for name in before} == before
    drawn = sorted(path.name for path in Path('a/drawn').iterdir())
    assert drawn == ['x.mp4', 'x.png', 'x_2.mp4', 'x_2.png']
    shades = []
    for name in ('x.mp4', 'x_2.mp4'):
        video = cv2.VideoCapture(f'a/drawn/{name}')
        shades.append(video.read()[1].mean())
        video.release()
    assert abs(shades[1] - shades[0]) > 20
    assert len(list(Path('a/labels').iterdir())) == 4
    write_predictions(Segmentor(), same_names, Path('a'))  # its own results


@pytest.mark.parametrize('folder', ['drawn', 'labels'])
def test_files_of_others_are_never_replaced(same_names, folder):
    Path('data', folder).mkdir(parents=True)
    os.replace('a/x.png', f'data/{folder}/x.png')
    before = contents('.')
    with pytest.raises(ValueError, match=f'data/{folder}, but it has files'):
        write_predictions(Segmentor(), ['b/x.png'], Path('data'))
    Path('data/predictions.json').write_text('[]')
    with pytest.raises(ValueError, match=f'data/{folder}, but images are read from'):
        write_predictions(Segmentor(), [f'data/{folder}'], Path('data'))
    os.remove('data/predictions.json')
    assert contents('.') == before


def test_earlier_predictions_survive_a_full_disk(tmp_path, monkeypatch):
    images, out = tmp_path / 'images', tmp_path / 'out'
    images.mkdir()
    for name in ('a.png', 'b.png'):
        Image.new('RGB', (2, 2)).save(images / name)
    write_predictions(Classifier(), [images / 'a.png'], out, draw=False)
    (path,) = out.iterdir()
    earlier = path.read_bytes()
    (found,) = json.loads(earlier)
    assert found['file_name'] == str(images / 'a.png')
    assert found['classes'][0] == dict(name='cell', score=0.75)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='the previous content is untouched.*predictions'):
        write_predictions(Classifier(), [images / 'b.png'], out, draw=False)
    assert path.read_bytes() == earlier
    assert json.loads((out / 'predictions.jsonl').read_text())['classes']
    monkeypatch.undo()
    write_predictions(Classifier(), [images / 'b.png'], out, draw=False)
    assert [*out.iterdir()] == [path] and path.read_bytes() != earlier


@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError])
def test_an_interruption_loses_no_result(same_names, tmp_path, caplog, error):
    class Stopped(Segmentor):
        def stream(self, images, score):
            for i, found in enumerate(super().stream(images, score)):
                if i == 2:
                    raise error
                yield found

    images = [same_names[0], same_names[2]] * 2
    write_predictions(Segmentor(), images[:2], tmp_path / 'whole')
    with pytest.raises(error):
        write_predictions(Stopped(), images, tmp_path / 'out')
    assert 'results of the first 2 images are in' in caplog.text
    lines = (tmp_path / 'out/predictions.jsonl').read_text().splitlines()
    whole = json.loads((tmp_path / 'whole/predictions.json').read_text())
    found = [json.loads(line) for line in lines]
    assert [line['image'] for line in found] == whole['images']
    assert sum([line['annotations'] for line in found], []) == whole['annotations']
    write_predictions(Segmentor(), images, tmp_path / 'out')  # replaces its own files


def test_what_is_drawn_has_the_score_that_is_written(tmp_path):
    class Detector:
        task, classes = 'detection', ['cell']

        def stream(self, images, score):
            boxes = np.array([[4, 4, 20, 20], [40, 40, 60, 60]], np.float32)
            scores = np.array([0.9, 0.1], np.float32)
            found = Detections(boxes, scores, np.zeros(2, int), ['cell'] * 2)
            found.size, found.source = (64, 64), 'a.png'
            yield np.zeros((64, 64, 3), np.uint8), found.above(score)

    for score, count in ((0.05, 2), (0.3, 1)):
        write_predictions(Detector(), [], tmp_path, score=score)
        written = json.loads((tmp_path / 'predictions.json').read_text())
        assert len(written['annotations']) == count
        drawn = np.asarray(Image.open(tmp_path / 'drawn/a.png'))
        assert drawn[35:].any() == (count == 2)


def test_images_of_one_name_get_files_of_their_own():
    names = _Names()
    given = 'a/cell.png', 'b/Cell.jpg', 'c/cell.png', None
    assert [*map(names.free, given)] == ['cell', 'Cell_2', 'cell_3', 'image']
