"""Check the data sets and channels of a config as training does."""

import argparse
import sys
from collections import Counter
from operator import itemgetter

import numpy as np
from mmengine.config import Config
from mmengine.registry import init_default_scope
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from mmattn.errors import UserError

from ..analysis.flops import build
from ..cli.terminal import config_of, print_table
from ..engine.config_check import check_arguments, check_scopes, check_topk
from ..engine.data.build import build_dataset
from ..engine.data.checked_dataset import CheckedPipeline, DataError, leaves
from ..engine.data.checks import Summary, check_leaf, ignored_labels
from ..engine.data.image_files import check_image_file
from ..engine.map_check import check_maps
from ..images import header_size
from .label_maps import question_about_255

SPLITS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def build_checked(cfg: Config) -> nn.Module:
    """Build the model without memory, and check that neck and heads fit the backbone.

    Raises:
        AssertionError, RuntimeError: mmengine cannot use a scope or a module.
        KeyError: a `type` is not registered.
        TypeError: an argument is unknown or missing.
        ValueError: an argument has a wrong value.
    """
    if not isinstance(cfg.get('model'), dict):
        raise UserError(f'`model` must be a dict, got {cfg.get("model")!r}')
    check_scopes(cfg.model, 'model')
    check_arguments(cfg.model)
    model = build(cfg)
    check_maps(cfg.model, model)
    for key in ('val_evaluator', 'test_evaluator'):
        check_topk(cfg.get(key), model, key)
    return model


def reason(error: Exception) -> str:
    """Return an error's text without the traceback of the worker that met it."""
    text = str(error).strip()
    if text.startswith('Caught '):
        text = text.splitlines()[-1].partition(': ')[2]
    return text


def decode(dataset, model: nn.Module, num_workers: int, title: str) -> Counter:
    """Load every sample without augmentation, and count the pixels of each label id."""
    pipeline = CheckedPipeline(dataset, ignored_labels(model))
    pipeline.transforms = [
        transform
        for transform in pipeline.transforms
        if type(transform).__name__.startswith('Load')
    ]
    dataset.pipeline = pipeline
    loader = DataLoader(dataset, num_workers=num_workers, collate_fn=itemgetter(0))
    pixels = np.zeros(0, dtype=np.int64)
    for sample in tqdm(loader, title, disable=None):
        if 'gt_seg_map' in sample:
            counts = np.bincount(sample['gt_seg_map'].ravel(), minlength=pixels.size)
            counts[: pixels.size] += pixels
            pixels = counts
    return Counter({label: int(pixels[label]) for label in np.flatnonzero(pixels)})


def check_files(dataset) -> None:
    """Check the ends of all files, and the sizes of images that annotations state.

    Raises:
        ValueError: a file is truncated, or has another size.
    """
    for name in CheckedPipeline(dataset, frozenset()).files:
        for index in range(len(dataset)):
            info = dataset.get_data_info(index)
            path = info.get(name)
            if isinstance(path, str) and '://' not in path:
                check_image_file(path)
                if name == 'img_path':
                    check_size(path, info.get('height'), info.get('width'))


def check_size(path: str, height: int | None, width: int | None) -> None:
    """Compare a size with the header of a file, as the image is shown."""
    size = header_size(path) if height and width else None
    if size not in (None, (height, width)):
        raise UserError(
            f'{path} has {size[0]} x {size[1]} pixels (height x width), turned by its '
            f'EXIF orientation if it has one, but the annotations say {height} x '
            f'{width}'
        )


def check_split(cfg: Config, key: str, model: nn.Module, args) -> dict[str, Summary]:
    """Summarize a split's data sets by their keys.

    Raises:
        ValueError: the first error.
    """
    summaries = {}
    key = f'{key}.dataset'
    built = build_dataset(cfg, key, download=args.download)
    for leaf_key, leaf in leaves(built, key):
        summary = check_leaf(leaf, leaf_key, model)
        if hasattr(leaf, 'pipeline') and hasattr(leaf, 'get_data_info'):
            check_files(leaf)
            if args.decode:
                pixels = decode(leaf, model, args.num_workers, leaf_key)
                summary.per_class.update(pixels)
                if getattr(leaf, 'reduce_zero_label', None) is False:
                    counts = [pixels[number] for number in range(256)]
                    question = question_about_255(counts, summary.classes)
                    if question:
                        print(f'warning: {leaf_key}: {question}', file=sys.stderr)
        summaries[leaf_key] = summary
    return summaries


def overview(summaries: dict[str, Summary]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column('data set', no_wrap=True)
    for title in ('images', 'of them empty', 'annotations', 'classes'):
        table.add_column(title, justify='right')
    for key, summary in summaries.items():
        annotated = summary.annotations is not None
        table.add_row(
            key,
            f'{summary.images}',
            f'{summary.empty_images}' if annotated else '-',
            f'{summary.annotations}' if annotated else '-',
            f'{len(summary.classes) or "-"}',
        )
    return table


def per_class(summaries: dict[str, Summary]) -> Table | None:
    """Draw a table of annotations, or label pixels, of each class and data set."""
    counted = {key: s for key, s in summaries.items() if s.per_class}
    if not counted:
        return None
    table = Table(box=None, pad_edge=False)
    table.add_column('class')
    for key in counted:
        table.add_column(key, justify='right')
    names = max((s.classes for s in counted.values()), key=len)
    labels = set().union(*(s.per_class for s in counted.values()), range(len(names)))
    for label in sorted(labels):
        name = names[label] if label < len(names) else f'{label}: no class'
        name = name if isinstance(name, str) else ', '.join(name)
        table.add_row(name, *(f'{s.per_class[label]}' for s in counted.values()))
    return table


def check(args: argparse.Namespace) -> int:
    """Print the table of a config, and return whether something is wrong.

    Args:
        args: of `cli.data_check`.
    """
    cfg = config_of(args)
    try:
        scope = cfg.get('default_scope', 'mmengine')
        if not scope or not isinstance(scope, str):
            # mmengine keeps its lock when it refuses a name: other threads would wait.
            raise UserError(f'default_scope must name a package, got {scope!r}')
        init_default_scope(scope)
        model = build_checked(cfg)
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
        message = error.args[0] if isinstance(error, KeyError) else error
        print(f'error: {" ".join(str(message).split())}', file=sys.stderr)
        return 1
    summaries, checked, errors = {}, [], []
    for key in SPLITS:
        loader = cfg.get(key) or {}
        if not isinstance(loader, dict):
            errors.append(f'{key} must be a dict, got {loader!r}')
            continue
        dataset = loader.get('dataset')
        if dataset is None or dataset in checked:
            continue
        checked.append(dataset)
        try:
            summaries.update(check_split(dataset, key, model, args))
        except (DataError, ValueError) as error:
            errors.append(reason(error))
    if summaries:
        print_table(overview(summaries))
    table = per_class(summaries)
    if table is not None:
        print_table(table)
    for error in errors:
        print(f'error: {error}', file=sys.stderr)
    return int(bool(errors))
