"""TensorBoard and WandB come with the one line of a config that the docs name."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

from mmengine.config import Config
from mmengine.registry import VISUALIZERS, init_default_scope

CONFIGS = Path(__file__).parents[2] / 'configs'
BASES = {
    'mmdet': 'mask_rcnn/ivit_t_3x_coco.py',
    'mmseg': 'upernet/ivit_t_160k_ade20k.py',
    'mmpretrain': 'classification/ivit_t_300e_in1k.py',
}
LOCAL = "dict(type='LocalVisBackend')"
LINES = {
    'tensorboard': f"""
visualizer = dict(vis_backends=[{LOCAL}, dict(type='TensorboardVisBackend')])
""",
    'wandb': f"""
visualizer = dict(vis_backends=[{LOCAL}, dict(type='WandbVisBackend', init_kwargs=dict(project='mmattn', mode='offline'))])
""",  # noqa: E501
}
FILES = {'tensorboard': '*/events.out.tfevents.*', 'wandb': '*/wandb/offline-run-*'}


def visualizer(tmp_path, scope: str, package: str):
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{CONFIGS / BASES[scope]}'{LINES[package]}")
    init_default_scope(scope)
    cfg = Config.fromfile(config).visualizer
    name = f'{tmp_path.name}_{scope}_{package}'
    return VISUALIZERS.build(cfg | dict(name=name, save_dir=str(tmp_path)))


@pytest.mark.parametrize('package', LINES)
@pytest.mark.parametrize('scope', BASES)
def test_the_line_adds_the_backend_in_every_package(tmp_path, scope, package):
    backends = visualizer(tmp_path, scope, package)._vis_backends
    added = {'tensorboard': 'TensorboardVisBackend', 'wandb': 'WandbVisBackend'}
    assert list(backends) == ['LocalVisBackend', added[package]]


@pytest.mark.parametrize('package', LINES)
def test_scalars_are_written(tmp_path, package):
    if find_spec(package) is None:
        pytest.skip(f'{package} is not installed')
    written = visualizer(tmp_path, 'mmdet', package)
    written.add_scalar('loss', 0.5, step=1)
    written.close()
    assert list(tmp_path.glob(FILES[package]))
