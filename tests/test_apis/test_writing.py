"""Files that `write_predictions` leaves."""

import errno
import json
import os

import numpy as np
import pytest

pytest.importorskip('mmengine')

from mmattn.apis.writing import _Names, write_predictions
from mmattn.results import Classification


class Classifier:
    """Give each image the scores of two classes."""

    task = 'classification'
    classes = ('cell', 'none')

    def stream(self, images):
        for name in images:
            scores = np.array([0.75, 0.25], np.float32)
            yield None, Classification(scores, [*self.classes], source=name)


def test_earlier_predictions_survive_a_full_disk(tmp_path, monkeypatch):
    write_predictions(Classifier(), ['a.png'], tmp_path, draw=False)
    (path,) = tmp_path.iterdir()
    earlier = path.read_bytes()
    (found,) = json.loads(earlier)
    assert found['file_name'] == 'a.png'
    assert found['classes'][0] == dict(name='cell', score=0.75)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='the previous content is untouched.*predictions'):
        write_predictions(Classifier(), ['b.png'], tmp_path, draw=False)
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == earlier


def test_images_of_one_name_get_files_of_their_own():
    names = _Names()
    sources = 'a/cell.png', 'b/cell.jpg', 'c/cell.png', None
    assert [names.free(source) for source in sources] == [
        'cell',
        'cell_2',
        'cell_3',
        'image',
    ]
