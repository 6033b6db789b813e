"""Models by path, by name and by work dir, and what is said where there is none."""

import os

import pytest
from mmengine.config import Config

from mmattn.apis import find_model
from mmattn.apis.find import run_checkpoint, run_config


@pytest.mark.parametrize(
    'name',
    [
        'mmattn::mask_rcnn/ivit_t_3x_coco.py',
        'mmattn::mask_rcnn/ivit_t_3x_coco',
        'mmattn::ivit_t_3x_coco',
        'ivit_t_3x_coco',
        'mask_rcnn/ivit_t_3x_coco.py',
    ],
)
def test_our_configs_are_found_by_name(name):
    found = find_model(name, 'random', {'model.test_cfg.rcnn.max_per_img': 7})
    assert found.cfg.model.type == 'MaskRCNN' and found.weights is None
    assert found.cfg.model.backbone.type == 'mmattn.IViT'
    assert found.cfg.model.test_cfg.rcnn.max_per_img == 7 and found.name == name


def test_configs_of_other_packages_are_found_by_prefix():
    name = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
    assert find_model(name, 'random').cfg.model.type == 'RetinaNet'


@pytest.mark.parametrize(
    'name, message',
    [
        ('ivit_t_3x_cocoo', 'closest are mask_rcnn/ivit_t_3x_coco.py'),
        ('mmattn::mask_rcn/ivit_t_3x_coco.py', 'mask_rcnn/ivit_t_3x_coco.py'),
        ('pvt_t_1x_coco', 'mmattn::mask_rcnn/pvt_t_1x_coco.py, mmattn::retinanet/pvt'),
        ('work_dirs/x', 'no file or work dir work_dirs/x, and .*does not exist'),
    ],
)
def test_misspelled_names(name, message):
    with pytest.raises(FileNotFoundError, match=message):
        find_model(name, 'random')


def test_a_config_keeps_its_own_copy():
    cfg = Config(dict(model=dict(type='A'), default_scope='mmdet'))
    found = find_model(cfg, 'random', {'model.type': 'B'})
    assert (found.cfg.model.type, cfg.model.type) == ('B', 'A')


def test_a_dict_is_no_config():
    with pytest.raises(ValueError, match='a path, a name or a Config, got dict'):
        find_model(dict(model=dict(type='A')), 'random')


@pytest.mark.parametrize(
    'weights, message',
    [
        (None, 'comes without weights'),
        ('best', "weights='best' requires a work dir"),
        ('missing.pth', 'no checkpoint at missing.pth'),
    ],
)
def test_weights_that_are_not_there(weights, message):
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        find_model('ivit_t_3x_coco', weights)


def test_addresses_of_weights_are_kept():
    address = 'https://example.org/weights.pth'
    assert find_model('ivit_t_3x_coco', address).weights == address


def test_exported_files(tmp_path):
    (tmp_path / 'model.onnx').touch()
    found = find_model(tmp_path / 'model.onnx')
    assert found.cfg is None and found.weights == str(tmp_path / 'model.onnx')
    with pytest.raises(ValueError, match='leave out weights'):
        find_model(tmp_path / 'model.onnx', 'a.pth')
    with pytest.raises(FileNotFoundError, match='no exported file'):
        find_model(tmp_path / 'other.pt2')


def test_files_that_are_no_model(tmp_path):
    (tmp_path / 'image.png').touch()
    with pytest.raises(ValueError, match='a model is a config'):
        find_model(tmp_path / 'image.png')


def test_work_dirs_without_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match='is no work dir'):
        run_config(tmp_path)
    with pytest.raises(FileNotFoundError, match='no checkpoint yet'):
        run_checkpoint(tmp_path)
    (tmp_path / 'epoch_1.pth').touch()
    with pytest.raises(FileNotFoundError, match='no best checkpoint'):
        run_checkpoint(tmp_path, 'best')
    for name in ('a.py', 'b.py'):
        (tmp_path / name).write_text(f'# {name}')
    with pytest.raises(ValueError, match='several configs, .*a.py, .*b.py'):
        run_config(tmp_path)


def test_the_best_checkpoint_is_taken_unless_another_is_asked_for(tmp_path):
    (tmp_path / 'run.py').write_text("default_scope = 'mmdet'")
    best, ninth, last = (
        tmp_path / name
        for name in ('best_coco_bbox_mAP_epoch_3.pth', 'epoch_9.pth', 'epoch_10.pth')
    )
    for path in (best, ninth, last):
        path.touch()
    for asked in (best, ninth, last):
        assert find_model(tmp_path, asked).weights == str(asked)
        assert find_model(asked).weights == str(asked)
    found = [find_model(tmp_path, which).weights for which in (None, 'best', 'last')]
    assert found == [str(best), str(best), str(last)]


TRAP = "raise SystemExit('the config ran')"


@pytest.mark.parametrize('name', ['.', 'model.safetensors'])
@pytest.mark.parametrize('place', ['model.py', '20260102_000000/vis_data/config.py'])
def test_a_work_dir_from_elsewhere_is_data(tmp_path, name, place):
    """It works without a record, and nothing in it runs unless the user says so."""
    (tmp_path / 'model.safetensors').touch()
    config = tmp_path / place
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('own = dict(a=[1, -2.5], b=(None, True))')
    found = find_model(tmp_path / name, tmp_path / 'model.safetensors')
    assert found.cfg.own == dict(a=[1, -2.5], b=(None, True))
    config.write_text(TRAP)
    with pytest.raises(ValueError, match='line 1 is no assignment of data.*--config'):
        find_model(tmp_path / name)
    with pytest.raises(SystemExit, match='the config ran'):
        find_model(tmp_path / name, config=config)


def test_a_given_config_needs_a_work_dir_or_a_checkpoint():
    with pytest.raises(ValueError, match='`config` is for a work dir or a checkpoint'):
        find_model('ivit_t_3x_coco', 'random', config='a.py')


@pytest.mark.parametrize(
    'save_best, taken',
    [
        ("'coco/bbox_mAP'", 'best_coco_bbox_mAP_iter_20.pth'),
        ("['coco/segm_mAP', 'coco/bbox_mAP']", 'best_coco_segm_mAP_iter_10.pth'),
        ("'auto'", 'best_coco_RBC_precision_iter_30.pth'),
    ],
)
def test_of_several_best_checkpoints_the_config_chooses(tmp_path, save_best, taken):
    """The newest one may be a class's, from an earlier run in the folder."""
    steps = {'bbox_mAP': [10, 20], 'bbox_mAP_50': [25], 'segm_mAP': [10]}
    steps['RBC_precision'] = [30]
    for time, (metric, step) in enumerate((m, s) for m in steps for s in steps[m]):
        path = tmp_path / f'best_coco_{metric}_iter_{step}.pth'
        path.touch()
        os.utime(path, (time, time))
    text = f'default_hooks = dict(checkpoint=dict(save_best={save_best}))'
    (tmp_path / 'run.py').write_text(text)
    cfg = Config.fromfile(tmp_path / 'run.py')
    assert run_checkpoint(tmp_path, cfg=cfg).name == taken
    assert run_checkpoint(tmp_path).name == taken


def test_the_last_checkpoint_is_the_one_of_most_steps(tmp_path):
    for name in ('iter_900.pth', 'iter_1000.pth', 'other.pth'):
        (tmp_path / name).touch()
    assert run_checkpoint(tmp_path).name == 'iter_1000.pth'
    (tmp_path / 'last_checkpoint').write_text('gone/iter_900.pth\n')
    assert run_checkpoint(tmp_path).name == 'iter_900.pth'
    (tmp_path / 'last_checkpoint').write_text('gone/iter_800.pth\n')
    assert run_checkpoint(tmp_path).name == 'iter_1000.pth'
