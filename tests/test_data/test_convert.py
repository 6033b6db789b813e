"""mmattn data convert: formats, splits, messages, and the configs it writes."""

import json
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from conversions import MASK, draw, run
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image
from pycocotools import mask as coco_mask

from mmattn.cli import data_check, data_convert
from mmattn.data import estimate, image_files, own_config

# mmengine replaces this text by `x|[\\\\',exit(3))#]`, which ends the string around it.
CODE = r"""{{$QZX:x|[\',exit(3))#]}}"""


def annotations(split: str) -> dict:
    path = Path(f'data/set/annotations/instances_{split}.json')
    return json.loads(path.read_text())


def test_numbers_of_a_mask_are_objects(here, photograph):
    """Objects of a photograph touch, and some consist of several parts."""
    numbers = np.arange(1, 20, dtype=np.uint8)
    cv2.imwrite('images/4.png', photograph.image[..., ::-1])
    cv2.imwrite('masks/4.png', (photograph.masks * numbers[:, None, None]).max(0))
    run('masks', 'images', 'masks', '--classes', 'thing', '--val-images', '4*')
    content = annotations('val')
    assert [image['file_name'] for image in content['images']] == ['4.png']
    assert content['categories'] == [{'id': 1, 'name': 'thing'}]
    found = content['annotations']
    x1, y1, x2, y2 = photograph.boxes.T
    boxes = np.stack([x1, y1, x2 - x1, y2 - y1], 1)
    np.testing.assert_array_equal([a['bbox'] for a in found], boxes)
    for annotation, mask in zip(found, photograph.masks, strict=True):
        assert annotation['area'] == mask.sum()
        pixels = coco_mask.decode(annotation['segmentation'])
        np.testing.assert_array_equal(pixels, mask)
    assert len(annotations('train')['images']) == 4
    assert sorted(p.name for p in Path('data/set/val').iterdir()) == ['4.png']


def test_connected_parts_of_black_and_white_masks_are_objects(here, capsys):
    for index in range(5):
        objects = [(0, 0, 9, 9, 255), (20, 20, 9, 9, 255), (35, 50, 1, 2, 255)]
        objects.append((29, 20, 4, 20, 255))  # with the one above it, an L
        cv2.imwrite(f'masks/{index}.png', draw(objects))
    run('masks', 'images', 'masks')
    said = capsys.readouterr()
    assert 'connected pixels are objects' in said.out and 'invert' not in said.err
    found = annotations('train')['annotations']
    assert [a['area'] for a in found] == [81, 81 + 80] * 4  # two pixels are dust
    assert found[1]['bbox'] == [20, 20, 20, 13]


def test_black_objects_on_white_are_pointed_out(here, capsys):
    for index in range(5):
        mask = draw([(0, 0, *MASK, 255), (9, 9, 9, 9, 0)])
        cv2.imwrite(f'masks/{index}.png', mask)
    run('masks', 'images', 'masks')
    said = capsys.readouterr().err
    assert 'note: masks: 5 masks have most of their pixels and all borders in' in said
    assert 'the background, invert the masks' in said


@pytest.mark.parametrize('kind', ['palette', 'colors'])
def test_objects_of_pascal_voc_have_borders(here, kind):
    palette = np.zeros((256, 3), np.uint8)
    palette[:3], palette[255] = [(0, 0, 0), (128, 0, 0), (0, 128, 0)], (224, 224, 192)
    Path('masks').rename('SegmentationObject')
    for index in range(5):
        numbers = draw([(4, 4, 12, 12, 255), (5, 5, 10, 10, 1), (25, 5, 5, 5, 1)])
        image = Image.fromarray(numbers)
        if kind == 'palette':
            image.putpalette(palette.ravel().tolist())
        else:
            image = Image.fromarray(palette[numbers])
        image.save(f'SegmentationObject/{index}.png')
    run('masks', 'images', 'SegmentationObject')
    assert [a['area'] for a in annotations('train')['annotations']] == [125] * 4


def test_images_of_12_bits_are_almost_black(here, capsys):
    run('masks', 'images', 'masks')
    assert 'almost black' not in capsys.readouterr().err
    for index in range(5):
        image = np.random.default_rng(index).integers(0, 4096, MASK, np.uint16)
        cv2.imwrite(f'images/{index}.png', image)
    run('masks', 'images', 'masks')
    said = capsys.readouterr().err
    assert 'no pixel of 4 of them is brighter than 15 of 255, and of 16 bits' in said
    kind = dict(photometric='minisblack', planarconfig='contig')
    tifffile.imwrite('5.tif', np.zeros((9, 9, 5), 'u1'), **kind)
    Image.new('1', (10_000, 9_000)).save('6.png')
    for name in ('5.tif', '6.png'):  # of other channels, and too large to be read
        assert image_files.darkness([Path(name)]) is None


def test_folders_are_classes(here):
    for name in ('nucleus', 'body'):
        shutil.copytree('masks', f'both/{name}')
    run('masks', 'images', 'both')
    content = annotations('val')
    assert [c['name'] for c in content['categories']] == ['body', 'nucleus']
    assert [a['category_id'] for a in content['annotations']] == [1, 1, 2, 2]


def test_the_split_depends_on_the_seed_alone(here):
    def names(*args):
        run('masks', 'images', 'masks', '--val', '0.4', *args)
        return [image['file_name'] for image in annotations('val')['images']]

    assert len(names()) == 2 and names() == names()
    assert len({tuple(names('--seed', str(seed))) for seed in range(6)}) > 1


def test_yolo(here):
    Path('labels').mkdir()
    for index in range(5):
        Path(f'labels/{index}.txt').write_text('1 0.5 0.5 0.2 0.5\n')
    Path('data.yaml').write_text('nc: 2\nnames: [car, bus]\n')
    run('yolo', 'images', 'labels', '--yaml', 'data.yaml')
    found = annotations('train')['annotations']
    assert found[0]['bbox'] == pytest.approx([24, 10, 12, 20], abs=1)
    assert {a['category_id'] for a in found} == {2}
    assert data_check.main(['data/faster_rcnn_ivit_n_set.py']) == 0
    cfg = Config.fromfile('data/faster_rcnn_ivit_n_set.py')
    assert cfg.model.type == 'FasterRCNN' and cfg.model.roi_head.mask_head is None
    assert cfg.val_evaluator.metric == 'bbox'
    assert cfg.default_hooks.checkpoint.save_best == 'coco/bbox_mAP'


def gone(path: str):
    return Path(f'{path}.png').unlink


def text(path: str):
    return lambda: Path(path).write_text('text')


def coded_folder():
    shutil.copytree('masks', f'folders/{CODE}')


def pixels(array, *names: str):
    return lambda: [cv2.imwrite(f'masks/{name}.png', array) for name in names or '2']


COLORS = np.zeros((*MASK, 3), np.uint8) + np.array([0, 9, 5], np.uint8)
ODD, LINE = np.zeros((40, 61), np.uint8), np.eye(3, dtype=np.uint8)[None]
MASKS, LABELS = 'masks images masks', 'labels images masks'
TWO_NAMES, A_TO_H = '--classes cell dirt', '--classes a b c d e f g'
NO_TEXT = "a class name must be text of one line without '{{'"
BAD = {  # the arguments, the error, and what is done to the data before
    'no folder': ('masks image masks', 'image is no folder'),
    'no image': ('masks xml masks', 'xml has no image; acc', Path('xml').mkdir),
    'masks in a folder of another name': (
        *('masks .', 'if masks have a folder of their own, pass it after'),
        lambda: Path('masks').rename('outlines'),
    ),
    'a mask is missing': (MASKS, "images without a mask, such as '2'", gone('masks/2')),
    'an image is missing': (MASKS, "without an image, such as '2'", gone('images/2')),
    'no image file': (MASKS, '2.png cannot be read as an image', text('images/2.png')),
    'another size': (MASKS, '40 x 61 pixels, but its image has 40 x 60', pixels(ODD)),
    'a colored mask': (MASKS, 'masks/2.png is a color image', pixels(LINE)),
    'a colored label map': (
        *(f'{LABELS} {A_TO_H} h', '`mmattn data convert labels` takes them with'),
        pixels(COLORS),
    ),
    'too many names': (
        f'{MASKS} {TWO_NAMES}',
        '--classes must name some of the classes object, or be 1 new names for them',
    ),
    'no objects': (MASKS, 'masks has no object in 5', pixels(draw([]), *'01234')),
    'no validation image': (
        f'{MASKS} --val-images day3*',
        "of 5 images none is left for val ('day3*')",
    ),
    'a label without a name': (
        f'{LABELS} {TWO_NAMES}',
        'has the number 7, but there are 2 classes, 0 to 1 (cell, dirt); if it '
        'is no class, pass --ignore 7; if it is a class, pass the gray of each, '
        "--palette ... '#070707'",
    ),
    'boxes of labels': (
        f'{LABELS} {A_TO_H} --boxes',
        '--boxes and --masks are for o',
    ),
    'labels without names': (LABELS, 'labels needs --classes'),
    'code as a class': ('masks images folders', NO_TEXT, coded_folder),
    'code as a label': (f'{LABELS} {A_TO_H} {CODE}', NO_TEXT),
    'yolo without names': ('yolo images masks', 'has no file with the names'),
}


@pytest.mark.parametrize('case', BAD.values(), ids=BAD)
def test_bad_data(here, case):
    args, message, *spoil = case
    for call in spoil:
        call()
    with pytest.raises((OSError, ValueError)) as error:
        run(*args.split())
    assert message in str(error.value)
    assert not Path('data/set').exists()


@pytest.mark.parametrize('name', [CODE, 'a\nexit(3)'], ids=['template', 'lines'])
def test_the_folder_of_the_data_is_no_code(here, name):
    with pytest.raises(ValueError, match='--out must be text of one line'):
        run('masks', 'images', 'masks', '--out', f'data/{name}')
    assert not Path('data').exists()


def test_the_config_of_objects_checks_and_builds(here, capsys):
    run('masks', 'images', 'masks', '--classes', 'cell')
    path = 'data/mask_rcnn_ivit_n_set.py'
    assert data_check.main([path]) == 0
    assert 'cell' in capsys.readouterr().out
    cfg = Config.fromfile(path)
    init_default_scope('mmdet')
    assert cfg.model.roi_head.mask_head.num_classes == 1
    warm_up, cosine = cfg.param_scheduler
    assert cfg.train_cfg.max_iters == cosine.end == 300
    assert warm_up.end == cosine.begin == 300 - cosine.T_max == 20
    assert cfg.val_evaluator.classwise is True
    assert cfg.default_hooks.checkpoint.save_best == 'coco/segm_mAP'
    Path(path).write_text('# mine')
    run('masks', 'images', 'masks', '--classes', 'cell')
    assert Path(path).read_text() == '# mine'
    assert 'is kept as it is' in capsys.readouterr().out


@pytest.mark.parametrize('shrunk', [1, 4])
def test_anchors_follow_the_factor_of_the_config(here, shrunk, monkeypatch):
    """Halving `factor` halves images and anchors, also where images are shrunk."""
    monkeypatch.setattr(own_config, 'SHORT', MASK[0] / shrunk)
    monkeypatch.setattr(own_config, 'SMALL', 0)
    run('masks', 'images', 'masks', '--classes', 'cell')
    path = Path('data/mask_rcnn_ivit_n_set.py')

    def read() -> tuple[float, float]:
        cfg = Config.fromfile(path)
        loaders = cfg.train_dataloader, cfg.val_dataloader
        steps = [step for loader in loaders for step in loader.dataset.pipeline]
        scales = {step.scale_factor for step in steps if step.type == 'Resize'}
        return scales.pop(), cfg.model.rpn_head.anchor_generator.scales[0]

    factor, scale = read()
    assert factor == 1 / shrunk and scale == 2
    text = path.read_text()
    path.write_text(text.replace(f'factor = {factor}', f'factor = {factor / 2}', 1))
    assert read() == (factor / 2, scale / 2)


def test_anchors_fit_the_middle_of_the_objects():
    for sides, scale in (([45.3], 4), ([3, 5], 2), ([90, 91], 8), ([900], 16)):
        assert own_config.anchor_scale(np.array(sides)) == scale


def log(*times):
    """Replace a training by one that logs `times` and ends or, with None, hangs."""

    def train(command, **options):
        assert command[command.index('--pretrained') + 1] == 'none'  # no network
        if times[-1] is not None:
            folder = Path(command[command.index('--work-dir') + 1], 'now/vis_data')
            folder.mkdir(parents=True)
            lines = [json.dumps(dict(time=time)) for time in times]
            Path(folder, 'scalars.json').write_text('\n'.join(lines))
        if len(times) < 3:
            raise subprocess.TimeoutExpired(command, estimate.LIMIT)
        return subprocess.CompletedProcess(command, 1, '', 'Traceback\nOSError: gone')

    return train


@pytest.mark.parametrize(
    'times, said',
    [
        ((60, 1, 3), 'estimate: 2.00 s a step on this machine, 100 min for 3000 steps'),
        ((60, 6), 'estimate: 6.00 s a step on this machine, 5.0 h for 3000 steps'),
        ((60,), 'no estimate of the training time: no two steps in 120 s'),
        ((None,), 'no estimate of the training time: no two steps in 120 s'),
        ((None,) * 3, 'no estimate of the training time: OSError: gone'),
    ],
    ids=['ends', 'slow', 'very-slow', 'hangs', 'fails'],
)
def test_the_estimate_never_fails(here, monkeypatch, capsys, times, said):
    monkeypatch.setattr(own_config, 'FEWEST', 3000)
    monkeypatch.setattr(own_config, 'SMALL', 0)
    monkeypatch.setattr(estimate.subprocess, 'run', log(*times))
    masks = ['masks', 'images', 'masks', '--out', 'data/set']
    data_convert.main([*masks, '--arch', 'ivit_nano'])
    out = capsys.readouterr().out
    assert said in out
    short = 'train_cfg.max_iters=300 train_cfg.val_interval=100 '
    assert (short in out) == ('factor = 0.5 in data/' in out) == said.startswith('est')
