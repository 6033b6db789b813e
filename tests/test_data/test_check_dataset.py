"""The check of a config's data sets, and a training that meets bad data."""

import json
import re
import shutil
import traceback
from pathlib import Path

import cv2
import pytest
from mmpretrain.datasets import cifar
from PIL import Image
from tool_runs import DETECTOR

from mmattn.cli import data_check, train
from mmattn.engine.data.checked_dataset import DataError

ROOT = Path(__file__).parents[2]

IMAGE = 'data/coco/train2017/000000001000.jpg'
LABELS = 'data/ade/ADEChallengeData2016/annotations/validation/ADE_val_00000002.png'
CONFIGS = {
    'detector': 'mask_rcnn/ivit_t_3x_coco',
    'segmentor': 'upernet/ivit_t_160k_ade20k',
    'classifier': 'classification/ivit_t_300e_in1k',
}
TRAINED = f"""{DETECTOR}
train_dataloader.update(num_workers=1, sampler=dict(shuffle=False))
"""


@pytest.fixture
def here(toys, tmp_path, monkeypatch):
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(name: str) -> str:
    return str(ROOT / 'configs' / f'{CONFIGS[name]}.py')


def rows(out: str) -> dict[str, list[str]]:
    """The cells of each line by its first word."""
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}


def column(table: dict, index: int) -> list[int]:
    """The counts of the classes in a data set; names may have spaces."""
    classes = [cells for name, cells in table.items() if not name.endswith('.dataset')]
    return [int(cells[index]) for cells in classes if cells[-1].isdecimal()]


def objects(split: str) -> int:
    path = Path(f'data/coco/annotations/instances_{split}.json')
    annotations = json.loads(path.read_text())['annotations']
    return sum(not annotation['iscrowd'] for annotation in annotations)


LENET = """
default_scope = 'mmpretrain'
model = dict(type='ImageClassifier', backbone=dict(type='LeNet5'))
"""


@pytest.mark.parametrize(
    ('text', 'error'),
    [
        ('', '`model` must be a dict, got None'),
        ("default_scope = ''", "default_scope must name a package, got ''"),
        ("model = dict(type='mmdet.\\n')", 'mmdet'),
        (LENET + "val_dataloader = 'val'", "val_dataloader must be a dict, got 'val'"),
    ],
)
def test_what_is_no_model_or_loader_is_one_line(tmp_path, capsys, text, error):
    (tmp_path / 'config.py').write_text(text)
    assert data_check.main([str(tmp_path / 'config.py')]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('error: ') and error in line


def test_a_detectors_data(here, capsys):
    assert data_check.main([config('detector')]) == 0
    table = rows(capsys.readouterr().out)
    # Training leaves out the image without annotation and the tiny one.
    assert table['val_dataloader.dataset'] == ['4', '1', f'{objects("val2017")}', '80']
    images, empty, annotations, classes = table['train_dataloader.dataset']
    assert (images, empty, classes) == ('2', '0', '80')
    assert 0 < int(annotations) < objects('train2017')
    assert 'test_dataloader.dataset' not in table  # the same as val's
    assert sum(column(table, -2)) == int(annotations)
    assert sum(column(table, -1)) == objects('val2017')
    assert len(column(table, -1)) > 70


def test_sizes_of_the_annotations_are_compared_with_the_files(here, capsys):
    path = Path('data/coco/annotations/instances_val2017.json')
    content = json.loads(path.read_text())
    image = content['images'][1]
    height, width = image['height'], image['width']
    file = f'data/coco/val2017/{image["file_name"]}'
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new('RGB', (height, width)).save(file, 'JPEG', exif=exif)
    assert data_check.main([config('detector')]) == 0
    Image.new('RGB', (height, width + 2)).save(file, 'JPEG', exif=exif)
    assert data_check.main([config('detector')]) == 1
    said = f'{file} has {height} x {width + 2} pixels (height x width), turned by its '
    said += (
        f'EXIF orientation if it has one, but the annotations say {height} x {width}'
    )
    assert said in capsys.readouterr().err


@pytest.mark.parametrize('decode', [False, True], ids=['', 'decode'])
def test_a_segmentors_data(here, capsys, decode):
    options = ['--decode', '--num-workers', '0'] if decode else []
    assert data_check.main([config('segmentor'), *options]) == 0
    table = rows(capsys.readouterr().out)
    assert table['train_dataloader.dataset'] == ['4', '-', '-', '150']
    assert ('wall' in table) == decode
    if decode:
        maps = Path(LABELS).parent.iterdir()
        sizes = [cv2.imread(str(path), -1).size for path in maps]
        assert sum(column(table, -1)) == sum(sizes)


def test_nothing_is_downloaded_unless_asked_for(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.chdir(tmp_path)
    function = 'download_and_extract_archive'
    monkeypatch.setattr(cifar, function, lambda url, *_, **__: asked.append(url))
    command = [str(ROOT / 'configs/cifar100/vit_t2_mhsa_300e_cifar100.py')]
    assert data_check.main(command) == 1 and not asked
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith('error')]
    for key, error in zip(('train', 'val'), errors, strict=True):
        files = f'{key}_dataloader.dataset: the files of CIFAR100 are not all in data/'
        assert files in error and error.endswith('data check CONFIG --download`')
    assert data_check.main([*command, '--download']) == 1 and len(asked) == 2


def test_every_bad_split_is_named(here, capsys):
    shutil.rmtree('data/ade/ADEChallengeData2016/images/training')
    labels = cv2.imread(LABELS, cv2.IMREAD_UNCHANGED)
    labels[0, 0] = 200
    cv2.imwrite(LABELS, labels)
    args = [config('segmentor'), '--decode', '--num-workers', '0']
    assert data_check.main(args) == 1
    first, second = capsys.readouterr().err.strip().splitlines()[-2:]
    assert 'train_dataloader.dataset.data_prefix.img_path: data/ade' in first
    assert f'ADE20KDataset: {LABELS} has the label 199, but there are 150' in second


def test_a_training_ends_with_the_name_of_the_file(here, monkeypatch, forget_instances):
    Path(IMAGE).write_bytes(Path(IMAGE).read_bytes()[:-100])
    (here / 'config.py').write_text(TRAINED)
    monkeypatch.setenv('LOCAL_RANK', '0')
    forget_instances()
    message = re.escape(f'sample 0 of CocoDataset: {IMAGE} is a truncated JPEG file')
    with pytest.raises(DataError, match=message) as raised:
        train.main(['config.py'])
    last = traceback.format_exception_only(raised.value)[-1].strip().splitlines()[-1]
    assert re.search(message, last)
