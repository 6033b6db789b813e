"""List the configs of the mm packages and make their models small enough to try."""

import hashlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config

PACKAGES = ('mmdet', 'mmseg', 'mmpretrain')
SIZES = {'mmdet': (64, 128, 256), 'mmseg': (64, 128), 'mmpretrain': (64, 224)}
# Keys that only say which weights to start from, or where to find them.
WEIGHTS = ('init_cfg', 'pretrained', 'teacher_ckpt')
# Numbers of candidates and samples, which set the work of a step and nothing else.
COUNTS = {
    'max_num': 20,
    'max_per_img': 20,
    'nms_post': 20,
    'nms_pre': 50,
    'num': 16,
}
SYNCHRONIZED = ('SyncBN', 'MMSyncBN', 'NaiveSyncBN')
# Their position biases fit one image size.
WHOLE_WINDOWS = ('BEiT', 'MAE')


def config_folder(package: str) -> Path:
    """Return the folder of configs inside an installed package."""
    return Path(importlib.import_module(package).__file__).parent / '.mim/configs'


def list_configs(package: str) -> list[str]:
    """Return the paths of a package's configs, without those that others inherit."""
    folder = config_folder(package)
    paths = (path.relative_to(folder) for path in folder.rglob('*.py'))
    return sorted(str(path) for path in paths if path.parts[0] != '_base_')


def load(package: str, path: str) -> Config:
    """Read a config without the warnings about what it inherits."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return Config.fromfile(config_folder(package) / path)
    finally:
        logging.disable(level)


def prepared(node: Any, size: int, folder: Path) -> Any:
    """Return a copy of a `model` without weights, for images of `size` pixels.

    Synchronized normalization becomes the plain one, which computes the same on one
    device. The numbers of candidates and samples become smaller.
    """
    if isinstance(node, list | tuple):
        return type(node)(prepared(value, size, folder) for value in node)
    if not isinstance(node, dict):
        return node
    node = {
        key: prepared(value, size, folder)
        for key, value in node.items()
        if key not in WEIGHTS
    }
    kind = node.get('type')
    if kind in SYNCHRONIZED:
        node['type'] = 'BN'
    elif kind == 'BatchFixedSizePad':
        node['size'] = size, size
    elif kind == 'BatchSyncRandomResize':
        node['random_size_range'] = size, size
    elif kind == 'SegDataPreProcessor' and node.get('size') is not None:
        node['size'] = size, size
    elif kind in WHOLE_WINDOWS and 'img_size' in node:
        node['img_size'] = size, size
    for key, limit in COUNTS.items():
        if isinstance(node.get(key), int) and node[key] > limit:
            node[key] = limit
    if isinstance(node.get('score_thr'), float):
        node['score_thr'] = 0.0
    # mmdet looks for the config of a teacher beside its own sources.
    if isinstance(teacher := node.get('teacher_config'), str):
        teacher = Config.fromfile(folder / teacher.removeprefix('configs/'))
        node['teacher_config'] = prepared(
            {'model': teacher.model.to_dict()}, size, folder
        )
    return node


def model_of(package: str, config: Config, size: int) -> dict:
    """Return the `model` of a config as the sweep builds it."""
    model = config.model.to_dict()
    # mmengine's runner does the same.
    if 'data_preprocessor' in config:
        model.setdefault('data_preprocessor', config.data_preprocessor.to_dict())
    small = prepared(model, size, config_folder(package))
    # With learned proposals, as in Sparse R-CNN, each one gives a detection.
    if number := (small.get('rpn_head') or {}).get('num_proposals'):
        small['test_cfg']['rcnn']['max_per_img'] = number
    return small


def digest(package: str, model: dict) -> str:
    """Return the same short name for equal models of a package."""
    text = json.dumps([package, model], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_models(package: str) -> Iterator[dict]:
    """Return one entry for each distinct model, and one for each config that fails.

    An entry has the keys `model` (its digest), `package` and `configs`, and `error`
    where the config cannot be read. Configs without a model are parts of others.
    """
    found: dict[str, dict] = {}
    for path in list_configs(package):
        try:
            config = load(package, path)
            if not config.get('model'):
                continue
            name = digest(package, model_of(package, config, SIZES[package][0]))
        # A config is a program: it can raise anything.
        except Exception as error:  # noqa: BLE001
            name = digest(package, {'path': path})
            found[name] = {'error': f'{type(error).__name__}: {error}'}
        entry = found.setdefault(name, {})
        entry.update(model=name, package=package)
        entry.setdefault('configs', []).append(path)
    yield from found.values()


def breadth_first(entries: list[dict]) -> list[dict]:
    """Order entries so that each method has its first model before any has a second."""
    seen: dict[tuple, int] = {}
    ranks = []
    for entry in entries:
        method = entry['package'], entry['configs'][0].split('/')[0]
        ranks.append(seen.get(method, 0))
        seen[method] = ranks[-1] + 1
    order = sorted(range(len(entries)), key=ranks.__getitem__)
    return [entries[index] for index in order]
