"""Build data sets with errors that name the key of the config and the path."""

import copy
import logging
import os
from inspect import signature

from mmengine.logging import print_log
from mmengine.registry import DATASETS
from pycocotools.coco import COCO

from mmattn.errors import UserError

from ...data.coco_json import index, read_coco
from .checked_dataset import DataError, loader

# Some published files omit this class, although mm's data set lists it.
OPTIONAL_NAMES = {'background'}
SHOWN = 5
ADVICE = 'docs/datasets.md says how to get and lay out data sets'


def build_dataset(cfg: dict, key: str, *, download: bool = True):
    """Build the data set of a config and read its annotations.

    Args:
        key: key of the data set in the config, for messages.
        download: let data sets such as mmpretrain's CIFAR10 download missing files.

    Raises:
        DataError: the data set cannot be built, has no image, or its COCO file is
            inconsistent.
    """
    return _build(_with_leaves_built(copy.deepcopy(cfg), key, download), key)


def _with_leaves_built(cfg, key: str, download: bool):
    """Return the config with each innermost data set replaced by a built one."""
    if not isinstance(cfg, dict):
        return cfg
    if isinstance(cfg.get('datasets'), list | tuple):
        parts = [
            _with_leaves_built(part, f'{key}.datasets.{index}', download)
            for index, part in enumerate(cfg['datasets'])
        ]
        return {**cfg, 'datasets': parts}
    if isinstance(cfg.get('dataset'), dict):
        inner = _with_leaves_built(cfg['dataset'], f'{key}.dataset', download)
        return {**cfg, 'dataset': inner}
    dataset = _build_leaf(cfg, key, download)
    return {'type': lambda: dataset}


def _build_leaf(cfg: dict, key: str, download: bool):
    offline = not download and cfg.get('download', True) and _can_download(cfg)
    try:
        dataset = _build({**cfg, 'download': False} if offline else cfg, key)
    except DataError as error:
        if offline and isinstance(error.__cause__, RuntimeError):
            raise DataError(
                f'{key}: the files of {cfg["type"]} are not all in '
                f'{cfg.get("data_root")}; training downloads them, and so does '
                '`mmattn data check CONFIG --download`'
            ) from error
        raise
    if hasattr(dataset, '__len__') and len(dataset) == 0:
        raise DataError(_no_image(cfg, key))
    return dataset


def _build(cfg: dict, key: str):
    name = cfg.get('type')
    try:
        if hasattr(_class(cfg), 'COCOAPI'):
            return _build_coco(cfg, key)
        dataset = DATASETS.build(cfg)
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        return dataset
    except UserError as error:  # it names the file
        raise DataError(str(error)) from error
    except Exception as error:  # a data set of a user may raise anything
        reason = _missing_path(cfg, key) or _emptiness(cfg, key, error)
        if reason is None:
            reason = f'{key} ({name}): {type(error).__name__}: {error}'
        raise DataError(reason) from error


def _class(cfg: dict):
    name = cfg.get('type')
    if not isinstance(name, str):
        return name
    with DATASETS.switch_scope_and_registry(cfg.get('_scope_')) as registry:
        return registry.get(name)


def _can_download(cfg: dict) -> bool:
    found = _class(cfg)
    return isinstance(found, type) and 'download' in signature(found).parameters


def _missing_path(cfg: dict, key: str) -> str | None:
    """Describe the first local path of a config that does not exist."""
    if cfg.get('backend_args'):
        return None
    root = cfg.get('data_root') or ''
    prefix = cfg.get('data_prefix') or {}
    if isinstance(prefix, str):
        paths = {'data_prefix': prefix}
    else:
        paths = {f'data_prefix.{name}': path for name, path in prefix.items()}
    for name, path in {'ann_file': cfg.get('ann_file'), **paths}.items():
        if not path or '://' in f'{root}{path}':
            continue
        if root and not os.path.exists(root):
            return f'{key}.data_root: {root} does not exist; {ADVICE}'
        joined = os.path.join(root, path)
        if not os.path.exists(joined):
            return f'{key}.{name}: {joined} does not exist'
    if root and '://' not in root and not os.path.exists(root):
        return f'{key}.data_root: {root} does not exist; {ADVICE}'
    return None


def _emptiness(cfg: dict, key: str, error: Exception) -> str | None:
    # mmengine packs the samples into one array; this is numpy's error for none.
    if isinstance(error, ValueError) and 'at least one array' in str(error):
        return _no_image(cfg, key)
    return None


def _no_image(cfg: dict, key: str) -> str:
    where = {
        name: cfg[name]
        for name in (
            *('data_root', 'ann_file', 'data_prefix', 'split', 'img_suffix'),
            *('filter_cfg', 'indices'),
        )
        if cfg.get(name)
    }
    described = ', '.join(f'{name}={value!r}' for name, value in where.items())
    return f'{key} ({cfg.get("type")}) has no image: {described}'


def _build_coco(cfg: dict, key: str):
    """Build a data set of mmdet, whose COCO file is read by `coco_json`."""
    dataset = DATASETS.build({**cfg, 'lazy_init': True})
    api_class = dataset.COCOAPI
    masks = loader(dataset, 'LoadAnnotations', with_mask=True) is not None
    counts = {}

    def read(path: str):
        if not issubclass(api_class, COCO):
            return api_class(path)
        content, notes = read_coco(path, dataset.ann_file, masks=masks)
        has_objects = all(
            'category_id' in entry for entry in content['annotations'][:1]
        )
        names = [category['name'] for category in content.get('categories') or ()]
        if names and has_objects:  # no captions, no panoptic segments
            classes = dataset.metainfo.get('classes')
            _check_names(names, classes, dataset.ann_file, key)
        for note in notes:
            print_log(note, logger='current', level=logging.WARNING)
        counts.update({name: len(content[name]) for name in ('images', 'annotations')})
        return index(content, api_class())

    dataset.COCOAPI = read  # shadows the class's attribute for one reading
    try:
        dataset.full_init()
    except ValueError as error:
        if counts and _emptiness(cfg, key, error):
            raise DataError(
                f'{key}: no image of {dataset.ann_file} remains, of '
                f'{counts["images"]} with {counts["annotations"]} annotations, by '
                f'filter_cfg={cfg.get("filter_cfg")} and the classes '
                f'{_some(dataset.metainfo["classes"])}'
            ) from error
        raise
    finally:
        del dataset.COCOAPI
    return dataset


def _check_names(names: list[str], classes, path: str, key: str) -> None:
    """Check that each class of the config is one category of the file.

    mmdet numbers the categories that it finds, so a missing one shifts all later ones.
    """
    where = f'{key}.metainfo.classes'
    if isinstance(classes, str):
        raise DataError(
            f'{where} is the string {classes!r}; of one class: ({classes!r},)'
        )
    if classes is None:
        return
    absent = [name for name in classes if name not in names]
    if set(absent) - OPTIONAL_NAMES:
        share = 'none' if len(absent) == len(classes) else f'not {_some(absent)}'
        raise DataError(
            f'{where}: of {_some(classes)}, {share} is a category of {path}, which has '
            f'{_some(names)}'
        )
    found = [name for name in names if name in classes]
    if len(found) > len(set(found)):
        repeated = sorted({name for name in found if found.count(name) > 1})
        raise DataError(f'{path} has several categories of the name {_some(repeated)}')
    if found != [name for name in classes if name in names]:
        print_log(
            f'{where} has another order than the categories of {path}; mmdet numbers '
            f'them in the order of the file, {_some(found)}, so names will be mixed up',
            logger='current',
            level=logging.WARNING,
        )


def _some(names) -> str:
    """Format the first few of a list of names."""
    names = list(names)
    more = f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''
    return ', '.join(map(repr, names[:SHOWN])) + more
