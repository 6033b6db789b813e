"""`mmattn export` writes a file, verifies it on images, and says what is wrong."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import classifier_config

import mmattn.export
from mmattn.cli import export as tool
from mmattn.engine.model import build_model
from mmattn.export.metadata import Metadata
from mmattn.export.verification import inputs_of

pytest.importorskip('onnxruntime')


@pytest.fixture
def files(tmp_path):
    """Return a config, a checkpoint, a folder with an image, and the image."""
    torch.manual_seed(0)
    cfg = classifier_config()
    cfg.dump(tmp_path / 'config.py')
    model, _ = build_model(cfg, None)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'model.pth')
    pixels = np.random.default_rng(0).integers(0, 256, (80, 100, 3), np.uint8)
    (tmp_path / 'images').mkdir()
    Image.fromarray(pixels).save(tmp_path / 'images/image.png')
    return tmp_path, pixels


@pytest.mark.slow
def test_command_writes_a_file_that_the_runner_runs(files, capsys):
    folder, pixels = files
    out = folder / 'model.onnx'
    command = [f'{folder}/config.py', '--weights', f'{folder}/model.pth']
    command += f'--shape 64 64 --out {out} --verify {folder}/images'.split()
    assert tool.main(command) == 0
    assert 'classification, scores' in capsys.readouterr().out
    result = mmattn.export.load(out)(pixels)
    assert result.scores.shape == (5,)
    assert tool.main([*command, '--force', '--part', 'backbone']) == 0
    assert 'features, feature0' in capsys.readouterr().out
    pytest.importorskip('openvino')
    command[command.index(str(out))] = f'{folder}/model.xml'
    assert tool.main(command) == 0
    assert f'{folder}/model.xml and {folder}/model.bin: ' in capsys.readouterr().out


def test_images_are_prepared_as_by_the_runner(files):
    folder, pixels = files
    levels = dict(mean=[128.0, 64.0, 32.0], std=[2.0, 4.0, 8.0], channel_order='bgr')
    ends = 'classification', ['image'], ['scores']
    metadata = Metadata(*ends, [64, 64], batch=2, **levels)
    small = Image.fromarray(pixels[:64, :64])
    small.save(folder / 'small.png')
    (image,) = inputs_of(folder / 'small.png', metadata)
    expected = torch.from_numpy(pixels[:64, :64, ::-1].copy()).permute(2, 0, 1)
    mean, std = (torch.tensor(x)[:, None, None] for x in (metadata.mean, metadata.std))
    torch.testing.assert_close(image, ((expected - mean) / std).expand(2, -1, -1, -1))


def test_images_of_a_folder_are_evenly_spaced(tmp_path):
    for i in range(10):
        (tmp_path / f'{i}.png').touch()
    (tmp_path / 'folder').mkdir()
    assert [path.stem for path in tool.images_at(tmp_path, 3)] == ['1', '5', '8']
    assert len(tool.images_at(tmp_path, 99)) == 10
    assert tool.images_at(tmp_path / '7.png', 3) == [tmp_path / '7.png']


def test_missing_image_is_refused(files, capsys):
    folder, _ = files
    (folder / 'empty/folder').mkdir(parents=True)
    command = f'{folder}/config.py --weights {folder}/model.pth --shape 64 64 --out x'
    for options, message in {
        f'.onnx --verify {folder}/none': 'no image or folder',
        f'.onnx --verify {folder}/empty': 'no files in',
        f' --web --examples {folder}/no*.png': 'no image at',
    }.items():
        with pytest.raises(SystemExit):
            tool.main((command + options).split())
        assert message in capsys.readouterr().err
