"""Build, train for a step and predict with the stock models of the mm packages.

    python -m tools.dev.stock mmdet/carafe mmseg/fcn    # prints the rows
    python -m tools.dev.stock --write         # all, into docs/*.csv

mmcv has no compiled operators: `mmattn.compat` provides them. Models of a method that
are equal but for their weights are tried once, with random weights, on small random
images, and at the config's own size where they accept no other. A config runs if its
model builds, trains a step with finite losses, and predicts. Each model has its own
process, with limits on memory and CPU time. It requires Linux (fork).
"""

import argparse
import copy
import json
import logging
import multiprocessing
import re
import resource
import signal
import socket
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import date
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope

import mmattn  # noqa: F401  serves mmcv's operators
from tools.benchmark.measure import write_csv
from tools.dev.stock_data import batches, is_self_supervised, values_of

CSV = Path(__file__).parents[2] / 'docs/stock_configs.csv'
PACKAGES = 'mmdet', 'mmseg', 'mmpretrain'
SIZES = {'mmdet': (64, 128, 256), 'mmseg': (64, 128), 'mmpretrain': (64, 224)}
LARGEST, MEMORY, CPU_SECONDS = 640, 8 << 30, 240
WEIGHTS = 'init_cfg', 'pretrained', 'teacher_ckpt'
# Numbers of candidates and samples, which set the work of a step and nothing else.
COUNTS = dict(max_num=20, max_per_img=20, nms_post=20, nms_pre=50, num=16)
# What says the reason, by the class of the error.
SIGNS = (
    ('operator', Exception, r"mmattn does not provide '(\w+)'"),
    ('untrained', NotImplementedError, r"firstly|doesn't support to train"),
    ('dependency', Exception, 'No module named .(\\w+)'),
    ('dependency', Exception, r'pip install (?:-\S+ )*"?([\w-]+(?:\[\w+\])?)'),
    ('dependency', Exception, r'[Pp]lease install ([\w-]+)|([\w-]+) is not installed'),
    ('dependency', AttributeError, 'batch_encode_plus'),  # of transformers before 5
    ('download', OSError, 'downloads nothing|offline|t connect|t load|Hub'),
    ('memory', MemoryError, ''),
    ('memory', Exception, 't allocate memory|not enough memory|DefaultCPUAllocator'),
)


def config_folder(package: str) -> Path:
    """Return the folder of configs inside an installed package."""
    return Path(import_module(package).__file__).parent / '.mim/configs'


def load(package: str, path: str) -> Config:
    """Read a config without the warnings about what it inherits."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action='ignore'):
            return Config.fromfile(config_folder(package) / path)
    finally:
        logging.disable(logging.NOTSET)


def prepared(node: Any, size: int) -> Any:
    """Return a copy of a `model` without weights, for images of `size` pixels."""
    if isinstance(node, list | tuple):
        return type(node)(prepared(value, size) for value in node)
    if not isinstance(node, dict):
        return node
    node = {k: prepared(v, size) for k, v in node.items() if k not in WEIGHTS}
    kind = node.get('type')
    if kind in ('SyncBN', 'MMSyncBN', 'NaiveSyncBN'):
        node['type'] = 'BN'  # the same on one device
    elif kind == 'BatchFixedSizePad' or (
        kind == 'SegDataPreProcessor' and node.get('size') is not None
    ):
        node['size'] = size, size
    elif kind == 'BatchSyncRandomResize':
        node['random_size_range'] = size, size
    elif kind in ('BEiT', 'MAE') and 'img_size' in node:
        node['img_size'] = size, size  # which their position biases fit
    for key, limit in COUNTS.items():
        if isinstance(node.get(key), int):
            node[key] = min(node[key], limit)
    if isinstance(node.get('score_thr'), float):
        node['score_thr'] = 0.0
    # mmdet looks for the config of a teacher beside its own sources.
    if isinstance(teacher := node.get('teacher_config'), str):
        teacher = load('mmdet', teacher.removeprefix('configs/'))
        node['teacher_config'] = prepared({'model': teacher.model.to_dict()}, size)
    return node


def model_of(package: str, config: Config, size: int) -> dict:
    """Return the `model` of a config as it is tried."""
    model = config.model.to_dict()
    if 'data_preprocessor' in config:  # mmengine's runner does the same
        model.setdefault('data_preprocessor', config.data_preprocessor.to_dict())
    small = prepared(model, size)
    # With learned proposals, as in Sparse R-CNN, each one gives a detection.
    if number := (small.get('rpn_head') or {}).get('num_proposals'):
        small['test_cfg']['rcnn']['max_per_img'] = number
    return small


def sizes_to_try(package: str, config: Config) -> Iterator[int]:
    """Yield sizes of images, the small ones first and the config's own one last."""
    # Two-stage DETRs select that many tokens of the image.
    queries = [n for n in values_of(config.model, 'num_queries') if isinstance(n, int)]
    yield from (s for s in SIZES[package] if s >= 256 or max(queries, default=0) <= 300)
    loader = config.get('test_dataloader') or {}
    own = [config.get('crop_size'), *values_of(loader, 'crop_size')]
    own += [*values_of(loader, 'scale'), *values_of(config.model, 'img_size')]
    own = [x[0] if isinstance(x, list | tuple) and x else x for x in own]
    own = [x for x in own if isinstance(x, int) and x > 0]
    yield from (min(x, LARGEST) for x in own[:1])


def attempt(package: str, config: Config, size: int):
    """Build a model, train it for a step and predict, at one size of images."""
    model = model_of(package, config, size)
    torch.manual_seed(0)
    init_default_scope(package)
    built = MODELS.build(ConfigDict(copy.deepcopy(model)))
    built = revert_sync_batchnorm(built)
    if model['type'] != 'MultimodalEncoderDecoder':  # which reads a checkpoint there
        built.init_weights()
    if sum(p.numel() for p in built.parameters()) > 1e9:
        raise MemoryError('more than a billion parameters')
    trained, tested = batches(package, config, model, size)
    headless = getattr(built, 'head', built) is None
    if not headless:
        try:
            train_one_step(built, copy.deepcopy(trained))
        except NotImplementedError as error:  # of trackers that have no loss
            if reason_of(error) != 'untrained':
                raise
    built.eval()
    with torch.no_grad():
        if headless or is_self_supervised(model['type'].rpartition('.')[2]):
            inputs = built.data_preprocessor(tested)['inputs']
            built(inputs[0] if isinstance(inputs, list) else inputs, mode='tensor')
        else:
            if hasattr(built, 'prototype_inited'):  # search among the batch itself
                features = built.extract_feat(built.data_preprocessor(tested)['inputs'])
                built.prototype = features[-1] if type(features) is tuple else features
            built.test_step(tested)


def train_one_step(model: torch.nn.Module, batch: dict):
    """Run the model's own training step and require finite losses."""
    model.train()
    for module in model.modules():
        # One step must do for the statistics, or the predictions overflow.
        if hasattr(module, 'running_mean'):
            module.momentum = 1.0
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = model.train_step(batch, OptimWrapper(torch.optim.SGD(parameters, lr=1e-5)))
    for name, loss in losses.items():
        if not torch.isfinite(torch.as_tensor(loss)).all():
            raise FloatingPointError(f'{name} is {loss}')


def reason_of(error: Exception) -> str:
    """Return why a model fails, in a few words."""
    text = ' '.join(str(error).split())
    for reason, kind, pattern in SIGNS:
        if isinstance(error, kind) and (found := re.search(pattern, text)):
            detail = next(filter(None, found.groups()), '')
            return f'{reason}: {detail.lower()}' if detail else reason
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if re.search(r'/mm\w+/', frame.filename)]
    frame = (own or frames)[-1]  # PyTorch's own lines say less
    place = frame.filename.rpartition('site-packages/')[2]
    return f'error: {place}:{frame.lineno}'


def work(pipe, package: str, path: str):
    """Try a model at the sizes that might suit it, and send '' or the reason."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))

    def refuse(host, *_, **__):
        raise OSError(f'this downloads nothing, got host {host}')

    socket.getaddrinfo = refuse
    config, reasons = load(package, path), []
    # Some configs of mmdet train a backbone with mmpretrain.
    package = config.get('default_scope', package)
    # As in the first iteration of a runner; some losses warm up.
    MessageHub.get_current_instance().update_info_dict({'iter': 0, 'epoch': 0})
    for size in sizes_to_try(package, config):
        try:
            with redirect_stdout(StringIO()):
                attempt(package, config, size)
            return pipe.send('')
        except Exception as error:  # noqa: BLE001  which is what the table lists
            reasons.append(reason_of(error))
    return pipe.send(reasons[-1])


def outcome(package: str, path: str) -> str:
    """Return why a config does not run, or ''."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=work, args=(there, package, path))
    process.start()
    there.close()
    try:
        found = here.recv() if here.poll(2 * CPU_SECONDS) else 'time'
    except EOFError:
        process.join()
        out_of_time = -process.exitcode in (signal.SIGXCPU, signal.SIGKILL)
        found = 'time' if out_of_time else f'killed: {process.exitcode}'
    process.kill()
    process.join()
    return found


def row_of(package: str, method: str) -> dict | None:
    """Try the distinct models of a method, and return its row, or None for no model."""
    folder, tried, reasons, count = config_folder(package), {}, Counter(), 0
    for file in sorted((folder / method).rglob('*.py')):
        path = str(file.relative_to(folder))
        try:
            config = load(package, path)
            if not config.get('model'):  # a part of others
                continue
            model = model_of(package, config, SIZES[package][0])
            key = json.dumps(model, sort_keys=True, default=repr)
            if key not in tried:
                tried[key] = outcome(package, path)
            reasons[tried[key]] += 1
        except Exception:  # noqa: BLE001  a config is a program
            reasons['config'] += 1
        count += 1
    runs = reasons.pop('', 0)
    why = '; '.join(f'{number} x {reason}' for reason, number in reasons.items())
    row = dict(package=package, method=method, configs=count, run=runs, reasons=why)
    versions = (f'{n} {import_module(n).__version__}' for n in (package, 'mmcv'))
    on = f'{", ".join(versions)}, torch {torch.__version__}, {date.today()}'
    return dict(row, on=on) if count else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('methods', nargs='*', metavar='PACKAGE/METHOD')
    parser.add_argument('--write', action='store_true', help=f'the rows into {CSV}')
    args = parser.parse_args()
    multiprocessing.set_start_method('fork')
    torch.set_num_threads(1)
    for package in PACKAGES:  # once, so that each process starts at once
        for part in ('datasets', 'models'):
            import_module(f'{package}.{part}')
    methods = args.methods or [
        f'{package}/{folder.name}'
        for package in PACKAGES
        for folder in sorted(config_folder(package).iterdir())
        if folder.is_dir() and folder.name != '_base_'
    ]
    rows = []
    for name in methods:
        if row := row_of(*name.split('/')):
            rows.append(row)
            print(*row.values(), sep=', ', flush=True)
    if args.write:
        write_csv(CSV, rows, {})


if __name__ == '__main__':
    sys.exit(main())
