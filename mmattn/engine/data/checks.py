"""Check data sets before training: files, labels, and the classes of the model."""

import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from mmengine.dist import is_main_process
from mmengine.logging import MMLogger, print_log
from torch import nn
from torch.utils.data import IterableDataset

from ..first_screen import SHOWN
from ..model import unwrapped
from .build import build_dataset
from .checked_dataset import (
    IMAGE_LOADERS,
    CheckedPipeline,
    DataError,
    check_pipelines,
    leaves,
    loader,
)

DETECTION_HEADS = ('bbox_head', 'mask_head', 'roi_head.bbox_head', 'roi_head.mask_head')


@dataclass
class Summary:
    """Statistics of a data set."""

    images: int
    annotations: int | None = None
    empty_images: int = 0
    classes: tuple[str, ...] = ()
    per_class: Counter = field(default_factory=Counter)


def prepare_dataloader(
    dataloader: dict, key: str = 'dataloader', model: nn.Module | None = None
) -> dict:
    """Return a loader's config with its data set built and checked.

    The main process reads every annotation once and looks for every file. This takes
    seconds for COCO or ImageNet, because no image is decoded. The contents of the files
    are checked while samples are loaded.

    Args:
        dataloader: a config's dataloader. A result of this function is returned as is.
        key: key of the loader in the config, such as `train_dataloader`.
        model: model whose classes are compared with the data set's.

    Raises:
        DataError: the data set is wrong. The message names the file or the key.
    """
    key = f'{key}.dataset'
    model = unwrapped(model)
    dataset = dataloader['dataset']
    if isinstance(dataset, dict):
        dataset = build_dataset(dataset, key)
    if isinstance(dataset, IterableDataset):
        return {**dataloader, 'dataset': dataset}
    parts = list(leaves(dataset, key))
    if any(isinstance(getattr(x, 'pipeline', None), CheckedPipeline) for _, x in parts):
        return dataloader
    if is_main_process():
        summaries = [check_leaf(leaf, leaf_key, model) for leaf_key, leaf in parts]
        logger = MMLogger.get_current_instance()
        logger.info(f'{key}: {_described(parts[0][1], summaries)}', extra=SHOWN)
    check_pipelines(dataset, ignored_labels(model))
    return {**dataloader, 'dataset': dataset}


def _described(first, summaries: list[Summary]) -> str:
    """Return what data sets hold in all, and the source of the first if it is alone."""
    parts = [f'{sum(each.images for each in summaries)} images']
    annotations = [each.annotations for each in summaries]
    if None not in annotations:
        kind = 'objects' if hasattr(first, 'proposal_file') else 'labels'
        parts.append(f'{sum(annotations)} {kind}')
    if summaries[0].classes:
        parts.append(f'{len(summaries[0].classes)} classes')
    source = getattr(first, 'ann_file', '') or getattr(first, 'data_root', '')
    if len(summaries) > 1:
        source = f'{len(summaries)} data sets'
    return ', '.join(parts) + (f' ({source})' if source else '')


def check_leaf(dataset, key: str, model: nn.Module | None = None) -> Summary:
    """Check a data set without wrappers, more strictly if `key` begins with train.

    Raises:
        DataError: the data set is wrong. The message names the file or the key.
    """
    _check_classes(dataset, key, model)
    summary = _summarize(dataset, key, _num_labels(model))
    if key.startswith('train'):
        _check_training_set(dataset, key, summary)
    return summary


def _check_training_set(dataset, key: str, summary: Summary) -> None:
    if summary.annotations == 0:
        raise DataError(
            f'{key} has {summary.images} images and no annotation of its '
            f'{len(summary.classes)} classes'
        )
    for name, label in getattr(dataset, 'folder_to_idx', {}).items():
        folder = os.path.join(dataset.img_prefix, name)
        # With `indices` there may be images of it that the data set leaves out.
        if label not in summary.per_class and not _has_image(folder, dataset):
            raise DataError(
                f'{key}: {folder} is the folder of a class, but has no image; accepted '
                f'suffixes: {", ".join(sorted(dataset.extensions))}'
            )


def _has_image(folder: str, dataset) -> bool:
    walk = os.walk(folder, followlinks=True)
    return any(dataset.is_valid_file(name) for _, _, names in walk for name in names)


def _summarize(dataset, key: str, num_labels: int | None = None) -> Summary:
    """Check the annotations of a data set without decoding an image.

    Args:
        num_labels: number of classes of a classifier; `gt_label` must be smaller.

    Raises:
        DataError: a file is missing, or a label is out of range.
    """
    metainfo = getattr(dataset, 'metainfo', {})
    summary = Summary(len(dataset), classes=tuple(metainfo.get('classes') or ()))
    if not hasattr(dataset, 'get_data_info'):
        return summary
    names = ['img_path'] * any(loader(dataset, name) for name in IMAGE_LOADERS)
    names += ['seg_map_path'] * bool(loader(dataset, 'LoadAnnotations', with_seg=True))
    paths = []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        paths += [info.get(name) for name in names]
        if 'instances' in info:
            labels = [
                instance.get('bbox_label')
                for instance in info['instances']
                if not instance.get('ignore_flag')
            ]
            limit = len(summary.classes) or None
        elif 'gt_label' in info:
            labels, limit = _integers(info['gt_label']), num_labels
        else:
            continue
        summary.annotations = (summary.annotations or 0) + len(labels)
        summary.empty_images += not labels
        summary.per_class.update(labels)
        for label in labels:
            if limit is not None and label is not None and not 0 <= label < limit:
                source = getattr(dataset, 'ann_file', '') or key
                raise DataError(
                    f'{info.get("img_path", f"image {index}")} has the label {label} '
                    f'in {source}, but there are {limit} classes, 0 to {limit - 1}'
                )
    _check_files(dataset, key, paths)
    return summary


def _check_files(dataset, key: str, paths: list) -> None:
    """Raise an error for paths without a file.

    Folders are listed once, which is faster than asking for each file.
    """
    listed = cache(_listed)
    missing = [
        path
        for path in paths
        if isinstance(path, str) and '://' not in path
        if os.path.basename(path) not in listed(os.path.dirname(path))
        if not os.path.exists(path)
    ]
    if not missing:
        return
    for name, prefix in getattr(dataset, 'data_prefix', {}).items():
        if prefix and missing[0].startswith(prefix) and not os.path.exists(prefix):
            raise DataError(f'{key}.data_prefix.{name}: {prefix} does not exist')
    more = f', nor do {len(missing) - 1} more files' if missing[1:] else ''
    raise DataError(
        f'{key}: {missing[0]} does not exist{more}, of {len(dataset)} images'
    )


def _listed(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder or '.'))
    except OSError:  # missing, or not listable
        return set()


def _integers(label) -> list[int]:
    """Return the integer labels; none for other targets, such as a regression's."""
    if isinstance(label, dict):
        return []
    values = np.asarray(label)
    return values.reshape(-1).tolist() if values.dtype.kind in 'iu' else []


def _check_classes(dataset, key: str, model: nn.Module | None) -> None:
    """Compare the classes of a data set with the outputs of a model's heads.

    Raises:
        DataError: a detector has another number of classes, or a segmentor fewer.
    """
    classes = getattr(dataset, 'metainfo', {}).get('classes')
    if isinstance(classes, str):
        raise DataError(
            f'{key}.metainfo.classes is the string {classes!r}; of one class: '
            f'({classes!r},)'
        )
    if classes is None or model is None:
        return
    where = f'{key} has {len(classes)} classes'
    # An open vocabulary has no fixed number. Panoptic models have a head each for
    # things and stuff.
    fixed = not getattr(dataset, 'return_classes', False)
    is_panoptic = 'thing_classes' in getattr(dataset, 'metainfo', {})
    if fixed and not is_panoptic and hasattr(dataset, 'proposal_file'):
        for name in DETECTION_HEADS:
            for head in _heads(model, name):
                number = head.num_classes
                if number != len(classes) and not getattr(
                    head, 'class_agnostic', False
                ):
                    raise DataError(
                        f'{where}, but model.{name}.num_classes is {number}'
                    )
    if hasattr(dataset, 'reduce_zero_label'):
        for head in _heads(model, 'decode_head'):
            number = head.num_classes
            # One channel with a sigmoid distinguishes two classes.
            capacity = 2 if getattr(head, 'out_channels', None) == 1 else number
            if len(classes) > capacity:
                raise DataError(
                    f'{where}, but model.decode_head.num_classes is {number}'
                )
            if len(classes) < number:
                print_log(
                    f'{where}, but model.decode_head.num_classes is {number}',
                    logger='current',
                    level=logging.WARNING,
                )


def _heads(model: nn.Module, name: str) -> list[nn.Module]:
    """Return the modules with `num_classes` under a name, or in a list of that name."""
    for part in name.split('.'):
        model = getattr(model, part, None)
    heads = model if isinstance(model, nn.ModuleList) else [model]
    return [h for h in heads if isinstance(getattr(h, 'num_classes', None), int)]


def _num_labels(model: nn.Module | None) -> int | None:
    heads = _heads(model, 'head')
    return heads[0].num_classes if heads else None


def ignored_labels(model: nn.Module | None) -> frozenset[int]:
    """Return the ids in label maps that the loss of a segmentor ignores."""
    names = ('decode_head', 'auxiliary_head')
    heads = [head for name in names for head in _heads(model, name)]
    values = (getattr(head, 'ignore_index', None) for head in heads)
    return frozenset(value for value in values if isinstance(value, int))
