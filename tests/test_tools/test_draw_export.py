"""Pictures of exported files beside PyTorch's."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmattn.export.metadata import Metadata
from mmattn.export.results import Detections, Segmentation
from tools.analysis import draw_export as tool


class InPyTorch:
    """Return what PyTorch finds in an image, or after a change something else."""

    def __init__(self, task, model, dataset):
        self.metadata = Metadata(task, [], [], [1, 1])
        self.model, self.meta = model, dataset.metainfo
        self.change = False
        samples = map(dataset.__getitem__, range(len(dataset)))
        self.data = {data['data_samples'].img_path: data for data in samples}

    @torch.no_grad()
    def __call__(self, path):
        (sample,) = self.model.test_step(pseudo_collate([self.data[path]]))
        if self.metadata.task == 'segmentation':
            labels = sample.pred_sem_seg.data[0].numpy()
            labels = (labels + self.change) % 150
            return Segmentation(labels, [*self.meta['classes']], self.meta['palette'])
        found = sample.pred_instances
        parts = (found[name].numpy() for name in ('bboxes', 'scores', 'labels'))
        names = [self.meta['classes'][label] for label in found.labels]
        found = Detections(*parts, names=names, masks=found.masks.numpy())
        found.classes = [*self.meta['classes']]
        return found.above(2 if self.change else 0)


@pytest.fixture(params=['detection', 'segmentation'])
def run(request, work, monkeypatch, forget_instances, tmp_path):
    """Return a config, a checkpoint, and their model as the runner of a file."""
    forget_instances()
    monkeypatch.chdir(work)
    name = dict(detection='detector', segmentation='segmentor')[request.param]
    cfg = Config.fromfile(f'{name}.py')
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model).eval()
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'model.pth')
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    runner = InPyTorch(request.param, model, dataset)
    return cfg, str(tmp_path / 'model.pth'), runner


def test_columns_are_of_pytorch_and_of_the_file(run):
    cfg, checkpoint, runner = run
    pictures = tool.draw(cfg, checkpoint, runner, 2, 0.0)
    assert len(pictures) == 2
    for (pytorch, legend), (file, other) in pictures:
        np.testing.assert_array_equal(pytorch, file)
        assert legend == other != []
    runner.change = True
    changed = tool.draw(cfg, checkpoint, runner, 2, 0.0)
    for (pytorch, file), (same, other) in zip(pictures, changed, strict=True):
        np.testing.assert_array_equal(pytorch[0], same[0])
        assert (file[0] != other[0]).any()


def test_other_tasks_are_refused(run):
    cfg, checkpoint, runner = run
    runner.metadata.task = 'features'
    with pytest.raises(ValueError, match='got features'):
        tool.draw(cfg, checkpoint, runner, 1, 0.5)
