"""mmattn.finetune: a detector, a segmentor and a classifier from folders of images."""

from importlib import import_module
from pathlib import Path

import cv2
import numpy as np
import pytest

import mmattn
from mmattn.apis import Predictor, budget
from mmattn.apis.budget import Cost, plan
from mmattn.apis.finetune import Run, described
from mmattn.cli import train
from mmattn.data.archs import archs, find_arch
from mmattn.data.recognize import config_for, format_of
from mmattn.errors import UserError
from mmattn.files import read_config_file
from mmattn.models.presets import short_name
from mmattn.results import Classification, Detections, Segmentation

SIDE, IMAGES = 64, 10
SWIN = 'timm://swin_tiny_patch4_window7_224.ms_in1k'
COLORS = {'red': (0, 0, 220), 'blue': (220, 0, 0)}  # BGR


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (('STEPS', 3), ('IMAGES', 1), ('FEWEST', 4)):
        monkeypatch.setattr(budget, name, value)
    return tmp_path


def scene(rng: np.random.Generator, color: tuple[int, ...]):
    """Return a noisy image with a disk of a color, and the disk."""
    image = rng.integers(90, 120, (SIDE, SIDE, 3), np.uint8)
    disk = np.zeros((SIDE, SIDE), np.uint8)
    x, y = rng.integers(16, 48, 2).tolist()
    cv2.circle(disk, (x, y), int(rng.integers(8, 14)), 1, -1)
    image[disk > 0] = color
    return image, disk


def write(kind: str):
    """Write images of disks with masks, with label maps, or in folders of colors."""
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        for name, color in COLORS.items():
            image, disk = scene(rng, color)
            folder = Path('disks', name if kind == 'classes' else 'images')
            folder.mkdir(parents=True, exist_ok=True)
            file = f'{name}{number}.png'
            cv2.imwrite(str(folder / file), image)
            if kind != 'classes':
                Path('disks', kind).mkdir(exist_ok=True)
                cv2.imwrite(f'disks/{kind}/{file}', disk)


def check(run, result, kind, metric: str):
    assert run.config.read_text().startswith('# 0.01 min here are 4 iterations')
    assert run.metrics[metric] >= 0 and run.checkpoint.name.startswith('best_')
    assert isinstance(result, kind) and result.draw().shape == (SIDE, SIDE, 3)
    dumped = read_config_file(str(run.work_dir / run.config.name))
    assert dumped.train_cfg.max_iters == 4 and dumped.scale_schedule


def test_a_classifier(here, monkeypatch, forget_instances):
    """Steps are timed by a command in its own process, as all is in the slow tests."""

    def train_here(name, config, limit):
        assert name == 'train' and limit > 0
        forget_instances()
        train.main([str(config)])

    write('classes')
    module = import_module('mmattn.apis.finetune')
    monkeypatch.setattr(module, 'run_command', train_here)
    run = mmattn.finetune('disks', minutes=0.01, pretrained='none')
    assert str(run.work_dir) == 'work_dirs/classifier_pvt_v2_b0_disks_mmattn'
    result = run.predictor('disks/red/red0.png')
    assert result.classes == ['blue', 'red']
    check(run, result, Classification, 'accuracy/top1')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('written', 'method', 'classes', 'kind', 'metric'),
    [
        ('masks', 'mask_rcnn', ['disk'], Detections, 'coco/segm_mAP'),
        ('labels', 'upernet', ['ground', 'disk'], Segmentation, 'mIoU'),
    ],
)
def test_detectors_and_segmentors(here, written, method, classes, kind, metric):
    write(written)
    run = mmattn.finetune('disks', 'ivit_nano', 0.01, classes=classes)
    assert str(run.work_dir) == f'work_dirs/{method}_ivit_n_disks_mmattn'
    result = run.predictor('disks/images/red0.png')
    check(run, result, kind, metric)
    assert run.report().read_text().count('|') > 10
    assert isinstance(Predictor(run.export('disks.onnx'))(result.source), kind)


def test_a_slow_training_is_stopped_when_the_minutes_are_over(here, monkeypatch):
    def run_command(name, config, limit):
        limits.append(limit)

    write('classes')
    limits = []
    module = import_module('mmattn.apis.finetune')
    monkeypatch.setattr(module, 'run_command', run_command)
    monkeypatch.setattr(module, 'measure', lambda *_: Cost(1.0, 0.0, 0.0, 4))
    for minutes in (60, 0.01):
        run = mmattn.finetune('disks', minutes=minutes, pretrained='none')
        limits.append(read_config_file(str(run.config)).train_cfg.max_iters)
    long, iterations, short, few = limits
    assert 3500 < long < 3600 and iterations == pytest.approx(0.9 * long, abs=2)
    assert short == module.SHORTEST and few == budget.FEWEST


def test_a_run_without_a_validation_says_how_to_get_one(tmp_path):
    log = tmp_path / '1/vis_data/scalars.json'
    log.parent.mkdir(parents=True)
    log.write_text('{"loss": 1.0, "step": 1}\n')
    run = Run(tmp_path, tmp_path / 'config.py')
    with pytest.raises(UserError, match=f'before one: mmattn test {tmp_path} evaluate'):
        _ = run.metrics


def test_the_length_follows_the_minutes():
    fast, slow = Cost(0.5, 0.01, 10, 60), Cost(0.5, 1.0, 10, 60)
    assert plan(fast, 610).iterations == int((600 - 4 * 0.6) / 0.5)
    # Two validations of a minute take a fifth of ten minutes.
    assert plan(slow, 610) == budget.Plan(960, 480)
    assert plan(slow, 15).iterations == budget.FEWEST
    assert described(10, slow, plan(slow, 610)).endswith('and 2 validations of 60 s')


@pytest.mark.parametrize(
    ('name', 'start', 'license'),
    [
        ('pvt_v2_b0', 'mmattn://pvt_v2_b0', 'Apache-2.0'),
        ('dat_tiny', 'mmattn://dat_tiny', 'Apache-2.0'),
        ('hmait_tiny', SWIN, 'MIT'),
        ('ivit_nano', None, None),
    ],
)
def test_what_a_backbone_starts_from(name, start, license):
    arch = find_arch(name)
    assert (arch.name, arch.start, arch.license) == (name, start, license)


@pytest.mark.slow  # 40 networks
def test_every_backbone_has_the_maps_of_its_channels():
    found = {arch.name: arch for arch in archs()}
    assert len(found) > 30 and 'vit_tiny' not in found
    assert len({short_name(name) for name in found}) == len(found)
    assert found['ivit_nano'].channels == (32, 64, 160, 256)


FOLDERS = [  # as Roboflow, labelImg, CVAT and people on GitHub write them
    ('csv', 'train/a.jpg train/_annotations.csv valid/b.jpg valid/_annotations.csv'),
    ('classes', 'train/a.jpg train/_classes.csv'),  # no legend of maps
    ('labels', 'train/a.jpg train/a_mask.png train/_classes.csv'),
    ('labels', 'JPEGImages/a.jpg SegmentationClass/a.png class_names.txt'),
    ('labels', 'Training_Images/a.jpg Ground_Truth/a.png'),
    ('masks', 'images/a.png masks/a.png labels/a.png'),
    ('yolo', 'a.jpg a.txt b.jpg _darknet.labels'),
    ('voc', 'JPEGImages/a.jpg Annotations/a.xml labels/a.txt ImageSets/train.txt'),
    ('coco', 'train/a.jpg train/a.txt train/_annotations.coco.json README.txt'),
    ('classes', 'train/cat/a.jpg train/dog/b.jpg README.txt'),
    (None, 'train/a.jpg valid/b.jpg'),
]


@pytest.mark.parametrize(
    ('content', 'kind'),
    [
        ('{"version": "5", "shapes": []}', 'labelme'),
        ('{"1.jpg7": {"regions": []}}', 'via'),
        ('{"images": []}', 'coco'),
    ],
)
def test_files_of_json_are_told_apart(tmp_path, content, kind):
    for name in 'ab':
        (tmp_path / f'{name}.jpg').touch()
        (tmp_path / f'{name}.json').write_text(content)
    assert format_of(tmp_path) == kind


@pytest.mark.parametrize('kind, names', FOLDERS)
def test_formats_are_told_apart(tmp_path, kind, names):
    for name in names.split():
        path = tmp_path / 'data' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('filename,xmin,ymin,xmax,ymax' * (kind == 'csv'))
    assert format_of(tmp_path / 'data') == kind


def test_errors(here):
    with pytest.raises(UserError, match='no model .pvtv9.*did you mean'):
        mmattn.finetune('disks', 'pvtv9')
    with pytest.raises(UserError, match='maps at strides .16,.*need .4, 8, 16, 32'):
        mmattn.finetune('disks', 'vit_tiny')
    with pytest.raises(FileNotFoundError, match='no folder or config at disks'):
        mmattn.finetune('disks')
    Path('disks').mkdir()
    with pytest.raises(UserError, match='(?s)disks is none of the layouts.*YOLO'):
        mmattn.finetune('disks')
    with pytest.raises(UserError, match='`minutes` must be positive, got 0'):
        mmattn.finetune('disks', minutes=0)


def test_weights_out_of_reach_are_named_before_anything_runs(here, monkeypatch):
    write('classes')
    monkeypatch.setenv('TORCH_HOME', 'empty')
    monkeypatch.setattr('mmattn.engine.start.local_checkpoint', refuse)
    with pytest.raises(
        UserError, match='(?s)pvt_v2_b0 is out of reach.*--pretrained none'
    ):
        mmattn.finetune('disks')


def refuse(address):
    raise ConnectionError(f'{address} cannot be reached')


def test_published_weights_and_their_normalization_are_in_the_config(here):
    write('classes')
    cfg = read_config_file(str(config_for(Path('disks'), find_arch('pvt_v2_b0'))))
    assert cfg.model.backbone.init_cfg.checkpoint == 'mmattn://pvt_v2_b0'
    assert cfg.model.data_preprocessor.mean == [123.675, 116.28, 103.53]
    assert cfg.model.backbone.arch == 'b0' and cfg.model.head.num_classes == 2
    assert len(list(Path('disks_mmattn/val').rglob('*.png'))) == 2 * IMAGES // 5
    assert config_for(Path('disks'), find_arch('pvt_v2_b0')) == Path(cfg.filename)
