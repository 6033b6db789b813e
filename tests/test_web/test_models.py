"""The models that the page offers, and those that stay open."""

import pytest

from mmattn.web import models
from mmattn.web.models import Models, Source, offered_models


def write_run(folder, checkpoint=True):
    folder.mkdir(parents=True)
    (folder / 'config.py').write_text('')
    if checkpoint:
        (folder / 'epoch_1.pth').write_bytes(b'')
    return folder


def test_a_folder_of_runs_offers_the_finished_ones_and_exported_files(tmp_path):
    write_run(tmp_path / 'first')
    write_run(tmp_path / 'second')
    write_run(tmp_path / 'unfinished', checkpoint=False)
    (tmp_path / 'notes').mkdir()
    (tmp_path / 'first/model.onnx').write_bytes(b'')
    (tmp_path / 'other.pt2').write_bytes(b'')
    found = offered_models([Source(str(tmp_path))])
    assert found == {
        'first': Source(str(tmp_path / 'first')),
        'second': Source(str(tmp_path / 'second')),
        'other.pt2': Source(str(tmp_path / 'other.pt2')),
        'model.onnx': Source(str(tmp_path / 'first/model.onnx')),
    }


def test_one_model_is_offered_as_given(tmp_path):
    run = write_run(tmp_path / 'run')
    (run / 'epoch_1.pth').unlink()  # `Predictor` says so
    sources = [
        Source(str(run)),
        Source('configs/demo/a.py', 'a.pth'),
        Source('ivit_t_3x_coco', 'random'),
        Source('x/model.onnx'),
    ]
    found = offered_models(sources)
    names = ['run', 'a', 'random weights: ivit_t_3x_coco', 'model.onnx']
    assert list(found) == names
    assert list(found.values()) == sources


def test_folders_without_models_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='has no finished run'):
        offered_models([Source(str(tmp_path))])
    write_run(tmp_path / 'run')
    with pytest.raises(ValueError, match='weights are for one model'):
        offered_models([Source(str(tmp_path), 'best')])


def test_two_models_stay_open(monkeypatch):
    opened = []

    def open_model(model, weights, device, *, trust_checkpoint):
        opened.append(model)
        return model, weights, device, trust_checkpoint

    monkeypatch.setattr(models, 'Predictor', open_model)
    found = Models({name: Source(name, 'w') for name in 'abc'}, 'cpu', True)
    assert found.names == ['a', 'b', 'c'] and not opened
    assert found['a'] == ('a', 'w', 'cpu', True)
    for name in 'baacab':
        found[name]
    # `c` drops `b`, the one that was used longest ago.
    assert opened == ['a', 'b', 'c', 'b']
    with pytest.raises(ValueError, match=r"must be one of \['a', 'b', 'c'\], got 'd'"):
        found['d']
