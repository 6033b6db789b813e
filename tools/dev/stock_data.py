"""Draw random batches in the form that each task of the mm packages reads."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import default_collate
from mmengine.structures import InstanceData, PixelData

BATCH = 2
SEMANTIC_STRIDE = {'HybridTaskCascade': 8, 'SCNet': 8}
TRACKERS = {
    'ByteTrack', 'DeepSORT', 'MaskTrackRCNN', 'Mask2FormerVideo', 'OCSORT',
    'QDTrack', 'StrongSORT',
}  # fmt: skip


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


def images(number: int, size: int, channels: int = 3) -> list[torch.Tensor]:
    shape = number, channels, size, size
    return list(torch.randint(256, shape, dtype=torch.uint8))


def detection(model: dict, size: int) -> dict:
    """Draw images with boxes, masks, and semantic maps; proposals for Fast R-CNN."""
    from mmdet.testing import demo_mm_inputs

    classes = fewest(model, 'num_classes', 'num_things_classes', default=80)
    kind = model['type']
    texts = ['cat . dog . ' for _ in range(BATCH)]
    batch = demo_mm_inputs(
        BATCH,
        (3, size, size),
        num_items=[3, 2],
        # RTMDet's assigner uses masks where there are any; its pipelines load none.
        with_mask=kind != 'RTMDet' or 'RTMDetSepBNHead' not in values_of(model, 'type'),
        with_semantic=True,
        num_classes=2,
        sem_seg_output_strides=SEMANTIC_STRIDE.get(kind, 1),
        use_box_type=True,
        texts=texts if kind in ('GLIP', 'GroundingDINO') else None,
        custom_entities=True,
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


def video(model: dict, size: int) -> dict:
    """Draw one video of two frames, the first of which is the key frame."""
    from mmdet.testing import demo_track_inputs

    return demo_track_inputs(
        1, 2, [0], (3, size, size), num_items=[2], num_classes=1, with_mask=True
    )


def reidentification(model: dict, size: int) -> dict:
    """Draw two upright pictures of each of two persons, of the one shape supported."""
    from mmdet.structures import ReIDDataSample

    samples = []
    for label in (0, 0, 1, 1):
        sample = ReIDDataSample()
        sample.set_gt_label(label)
        samples.append(sample)
    drawn = torch.randint(256, (4, 3, 256, 128), dtype=torch.uint8)
    return {'inputs': list(drawn), 'data_samples': samples}


def semi_supervised(model: dict, size: int) -> dict:
    """Draw a labeled batch and two views of an unlabeled one."""
    branches = 'sup', 'unsup_teacher', 'unsup_student'
    batches = {branch: detection(model, size) for branch in branches}
    for batch in batches.values():
        for sample in batch['data_samples']:
            sample.set_metainfo({'homography_matrix': np.eye(3, dtype=np.float32)})
    return {
        key: {branch: batches[branch][key] for branch in branches}
        for key in ('inputs', 'data_samples')
    }


def segmentation(model: dict, size: int) -> dict:
    """Draw images with a class or a depth for each pixel."""
    from mmseg.structures import SegDataSample

    classes = min(fewest(model, 'num_classes', default=2), 2)
    samples = []
    for shift in range(BATCH):
        columns = (torch.arange(size) * 2 // size + shift) % classes
        shape = {'img_shape': (size, size), 'ori_shape': (size, size)}
        sample = SegDataSample(metainfo={**shape, 'pad_shape': (size, size)})
        sample.gt_sem_seg = PixelData(data=columns.expand(1, size, size).clone())
        edges = torch.zeros(1, size, size, dtype=torch.long)
        edges[..., size // 2] = 1
        sample.gt_edge_map = PixelData(data=edges)
        sample.gt_depth_map = PixelData(data=torch.rand(1, size, size) + 1)
        samples.append(sample)
    return {'inputs': images(BATCH, size), 'data_samples': samples}


def classification(model: dict, size: int) -> dict:
    """Draw images with a class, several classes, or one class for each task."""
    from mmpretrain.structures import DataSample, MultiTaskDataSample

    head = model.get('head') or {}
    preprocessor = model.get('data_preprocessor') or {}
    # A head without weights has as many classes as its one-hot labels.
    classes = fewest(head, 'num_classes', default=preprocessor.get('num_classes') or 2)
    kind = str(head.get('type'))
    samples = []
    for index in range(BATCH):
        if kind == 'MultiTaskHead':
            sample = MultiTaskDataSample()
            for task in head['task_heads']:
                sample.set_field(DataSample().set_gt_label(0), task)
        elif kind.startswith('MultiLabel'):
            score = torch.arange(classes) % 2
            sample = DataSample().set_gt_score(score.float())
        else:
            sample = DataSample().set_gt_label(index % classes)
        samples.append(sample)
    mean = preprocessor.get('mean') or [0, 0, 0]
    return {'inputs': images(BATCH, size, len(mean)), 'data_samples': samples}


def lanes(model: dict, size: int) -> dict:
    """Draw images of the one shape that CLRNet supports, with one lane in each."""
    from mmengine.structures import BaseDataElement

    lines = np.full((4, 78), -1e5, np.float32)
    lines[:, :2] = 1, 0
    lines[0, :6] = 0, 1, 0, 0.5, 0.4, 30
    lines[0, 6:36] = np.linspace(400, 300, 30)
    samples = []
    for _ in range(BATCH):
        sample = BaseDataElement(lines_array=lines, org_height=320, org_width=800)
        regions = torch.zeros(1, 320, 800, dtype=torch.uint8)
        regions[..., 350:360] = 1
        sample.gt_sem_seg = PixelData(sem_seg=regions)
        samples.append(sample)
    drawn = torch.randint(256, (BATCH, 3, 320, 800), dtype=torch.uint8)
    return {'inputs': list(drawn), 'data_samples': samples}


def self_supervised(config: Config) -> dict:
    """Run a config's own training pipeline on random images."""
    from mmpretrain.registry import TRANSFORMS

    steps = config.train_dataloader.dataset.pipeline
    steps = [step for step in steps if 'Load' not in step.type]
    steps = [TRANSFORMS.build(step) for step in steps]
    drawn = []
    for index in range(BATCH):
        image = np.random.default_rng(index).integers(0, 256, (256, 256, 3), np.uint8)
        shape = image.shape[:2]
        result = {'img': image, 'img_shape': shape, 'ori_shape': shape}
        result.update(img_path='', sample_idx=index)
        for step in steps:
            result = step(result)
        drawn.append(result)
    return default_collate(drawn)


def batches(package: str, config: Config, model: dict, size: int) -> tuple[dict, dict]:
    """Return the batch to train on and the batch to predict for."""
    kind = model['type'].rpartition('.')[2]
    if package == 'mmseg':
        drawn = segmentation(model, size)
    elif package == 'mmpretrain' and is_self_supervised(kind):
        drawn = self_supervised(config)
    elif package == 'mmpretrain':
        drawn = classification(model, size)
    elif kind == 'CLRNet':
        drawn = lanes(model, size)
    elif kind == 'BaseReID':
        drawn = reidentification(model, size)
    elif any(values_of(model, 'use_det_processor')):
        # Trackers that train the detector inside them on single images.
        return detection(model, size), video(model, size)
    elif kind in TRACKERS:
        drawn = video(model, size)
    else:
        trained = semi_supervised if kind == 'SoftTeacher' else detection
        one = {key: values[:1] for key, values in detection(model, size).items()}
        return trained(model, size), one  # mmdet's test loaders have one image
    return drawn, drawn


def is_self_supervised(kind: str) -> bool:
    from mmpretrain.models.selfsup import BaseSelfSupervisor
    from mmpretrain.registry import MODELS

    found = MODELS.get(kind)
    return isinstance(found, type) and issubclass(found, BaseSelfSupervisor)
