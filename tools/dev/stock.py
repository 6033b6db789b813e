"""Build, train for a step and predict with the stock models of the mm packages.

    python -m tools.dev.stock mmdet/carafe mmseg/fcn    # prints the rows
    python -m tools.dev.stock                           # writes all into docs/*.csv

mmcv has no compiled operators: `mmattn.compat` provides them. Models of a method that
are equal but for their weights are tried once, with random weights and images, small
or of the config's own size. A config runs if its model builds, trains a step with
finite losses, and predicts. Each model has its own process, with limits on memory and
CPU time, which requires Linux (fork). `LEFT_OUT` needs other data or other weights.
"""

import copy
import multiprocessing
import resource
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData

import mmattn  # noqa: F401  serves mmcv's operators
from tools.benchmark.measure import write_csv

CSV = Path(__file__).parents[2] / 'docs/stock_configs.csv'
LEFT_OUT = {
    'mmdet': 'bytetrack clrnet deepsort lad ld mask2former_vis masktrack_rcnn ocsort '
    'qdtrack reid soft_teacher sort strongsort',
    'mmseg': 'vpd',
    'mmpretrain': 'arcface barlowtwins beit beitv2 byol cae densecl eva itpn mae '
    'maskfeat mff milan mixmim mocov2 mocov3 simclr simmim simsiam spark swav',
}
BATCH = 2
SIZES = {'mmdet': (64, 128, 256), 'mmseg': (64, 128), 'mmpretrain': (64, 224)}
LARGEST, MEMORY, CPU_SECONDS = 640, 8 << 30, 240
WEIGHTS = 'init_cfg', 'pretrained', 'teacher_ckpt'
# Numbers of candidates and samples, which set the work of a step and nothing else.
COUNTS = dict(max_num=20, max_per_img=20, nms_post=20, nms_pre=50, num=16)


def config_folder(package: str) -> Path:
    """Return the folder of configs inside an installed package."""
    return Path(import_module(package).__file__).parent / '.mim/configs'


def load(package: str, path: str) -> Config:
    """Read a config without the warnings about what it inherits."""
    with warnings.catch_warnings(action='ignore'):
        return Config.fromfile(config_folder(package) / path)


def values_of(node: Any, key: str) -> Iterator[Any]:
    """Return the values that a key has anywhere in nested dicts and lists."""
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from values_of(value, key)


def fewest(model: dict, *keys: str, default: int) -> int:
    """Return the smallest number of classes, so that a label fits every head."""
    counts = [count for key in keys for count in values_of(model, key)]
    return min((count for count in counts if isinstance(count, int)), default=default)


def detection(model: dict, size: int) -> dict:
    """Draw images with boxes, masks, and semantic maps; proposals for Fast R-CNN."""
    from mmdet.testing import demo_mm_inputs

    classes = fewest(model, 'num_classes', 'num_things_classes', default=80)
    kind = model['type']
    batch = demo_mm_inputs(
        BATCH,
        (3, size, size),
        num_items=[3, 2],
        # RTMDet's assigner uses masks where there are any; its pipelines load none.
        with_mask=kind != 'RTMDet' or 'RTMDetSepBNHead' not in values_of(model, 'type'),
        with_semantic=True,
        num_classes=2,
        sem_seg_output_strides=8 if kind in ('HybridTaskCascade', 'SCNet') else 1,
        use_box_type=True,
    )
    for sample in batch['data_samples']:
        labels = torch.arange(len(sample.gt_instances)) % min(classes, 2)
        sample.gt_instances.labels = labels
        # Other detectors would skip their RPN in prediction.
        if kind == 'FastRCNN':
            boxes = sample.gt_instances.bboxes.tensor.clone()
            sample.proposals = InstanceData(bboxes=boxes, scores=torch.ones(len(boxes)))
        sample.set_metainfo({'batch_input_shape': (size, size)})
    return batch


def segmentation(model: dict, size: int) -> list:
    """Draw a class for each pixel, and the edges between classes."""
    from mmseg.structures import SegDataSample

    classes = min(fewest(model, 'num_classes', default=2), 2)
    samples, shapes = [], ('img_shape', 'ori_shape', 'pad_shape')
    for shift in range(BATCH):
        sample = SegDataSample(metainfo=dict.fromkeys(shapes, (size, size)))
        labels = (torch.arange(size) * 2 // size + shift) % classes
        edges = (torch.arange(size) == size // 2).long()
        sample.gt_sem_seg = PixelData(data=labels.expand(1, size, size).clone())
        sample.gt_edge_map = PixelData(data=edges.expand(1, size, size).clone())
        samples.append(sample)
    return samples


def classification(model: dict, size: int) -> list:
    """Draw a class for each image, or several."""
    from mmpretrain.structures import DataSample

    # A head without weights has as many classes as its one-hot labels.
    default = (model.get('data_preprocessor') or {}).get('num_classes') or 2
    head = model.get('head') or {}
    classes = fewest(head, 'num_classes', default=default)
    if str(head.get('type')).startswith('MultiLabel'):
        score = (torch.arange(classes) % 2).float()
        return [DataSample().set_gt_score(score) for _ in range(BATCH)]
    return [DataSample().set_gt_label(i % classes) for i in range(BATCH)]


def batches(package: str, model: dict, size: int) -> tuple[dict, dict]:
    """Return the batch to train on and the batch to predict for."""
    if package == 'mmdet':  # whose test loaders have one image
        drawn = detection(model, size)
        return drawn, {key: values[:1] for key, values in drawn.items()}
    draw = segmentation if package == 'mmseg' else classification
    mean = (model.get('data_preprocessor') or {}).get('mean') or [0, 0, 0]
    images = torch.randint(256, (BATCH, len(mean), size, size), dtype=torch.uint8)
    batch = {'inputs': list(images), 'data_samples': draw(model, size)}
    return batch, batch


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
    elif kind in ('BatchFixedSizePad', 'SegDataPreProcessor') and node.get('size'):
        node['size'] = size, size
    elif kind == 'BatchSyncRandomResize':
        node['random_size_range'] = size, size
    for key, limit in COUNTS.items():
        if isinstance(node.get(key), int):
            node[key] = min(node[key], limit)
    if isinstance(node.get('score_thr'), float):
        node['score_thr'] = 0.0
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
    yield from SIZES[package]
    loader = config.get('test_dataloader') or {}
    own = [config.get('crop_size'), *values_of(loader, 'crop_size')]
    own += [*values_of(loader, 'scale'), *values_of(config.model, 'img_size')]
    own = [x[0] if isinstance(x, list | tuple) and x else x for x in own]
    yield from [min(x, LARGEST) for x in own if isinstance(x, int) and x > 0][:1]


def attempt(package: str, config: Config, size: int):
    """Build a model, train it for a step and predict, at one size of images."""
    model = model_of(package, config, size)
    torch.manual_seed(0)
    init_default_scope(package)
    built = MODELS.build(ConfigDict(copy.deepcopy(model)))
    built = revert_sync_batchnorm(built).train()
    if model['type'] != 'MultimodalEncoderDecoder':  # which reads a checkpoint there
        built.init_weights()
    trained, tested = batches(package, model, size)
    if getattr(built, 'head', built) is None:
        return built(built.data_preprocessor(tested)['inputs'], mode='tensor')
    for module in built.modules():
        # One step must do for the statistics, or the predictions overflow.
        if hasattr(module, 'running_mean'):
            module.momentum = 1.0
    optimizer = OptimWrapper(torch.optim.SGD(built.parameters(), lr=1e-5))
    losses = built.train_step(copy.deepcopy(trained), optimizer)
    if not all(torch.as_tensor(loss).isfinite().all() for loss in losses.values()):
        raise FloatingPointError(f'losses must be finite, got {losses}')
    with torch.no_grad():
        built.eval().test_step(tested)


def work(pipe, package: str, path: str):
    """Try a model at the sizes that might suit it, and send '' or the reason."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    socket.getaddrinfo = Mock(side_effect=OSError('this downloads nothing'))
    config, reason = load(package, path), ''
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
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())[:80]
    return pipe.send(reason)


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
        found = f'killed: {process.exitcode}'
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
            key = repr(model_of(package, config, SIZES[package][0]))
            if key not in tried:
                tried[key] = outcome(package, path)
            reasons[tried[key]] += 1
        except Exception:  # noqa: BLE001  a config is a program
            reasons['config'] += 1
        count += 1
    runs = reasons.pop('', 0)
    why = '; '.join(f'{number} x {reason}' for reason, number in reasons.items())
    facts = dict(configs=count, run=runs, reasons=why)
    return dict(package=package, method=method, **facts) if count else None


def main():
    multiprocessing.set_start_method('fork')
    torch.set_num_threads(1)
    for package in LEFT_OUT:  # once, so that each process starts at once
        import_module(f'{package}.models')
    methods = sys.argv[1:] or [
        f'{package}/{folder.name}'
        for package in LEFT_OUT
        for folder in sorted(config_folder(package).glob('[!_]*/'))
        if folder.name not in LEFT_OUT[package].split()
    ]
    rows = []
    for name in methods:
        if row := row_of(*name.split('/')):
            rows.append(row)
            print(*row.values(), sep=', ', flush=True)
    if not sys.argv[1:]:
        write_csv(CSV, rows, {})


if __name__ == '__main__':
    sys.exit(main())
