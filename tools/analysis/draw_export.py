"""Draw what an exported file finds in images, beside what PyTorch finds in them.

    python tools/analysis/draw_export.py CONFIG CHECKPOINT model.onnx --out picture.jpg

takes images of the config's validation data. PyTorch predicts by the test pipeline and
the model of the config, and the file runs by `mmattn.export.load`.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, init_default_scope
from mmengine.runner import load_checkpoint
from mmengine.structures import BaseDataElement, InstanceData, PixelData

import mmattn  # noqa: F401  makes mmcv's operators available
from mmattn.analysis.sample_pictures import draw_prediction, show
from mmattn.cli.terminal import config_file, positive, run_main
from mmattn.errors import UserError
from mmattn.export import load
from mmattn.export.results import Detections, Segmentation
from mmattn.export.runner import Runner
from mmattn.images import read_image

matplotlib.use('Agg')
from matplotlib import pyplot as plt

RUNTIMES = {'.onnx': 'ONNX Runtime', '.pt2': 'torch.export', '.xml': 'OpenVINO'}


def as_sample(found: Detections | Segmentation) -> BaseDataElement:
    """Return results of a file as those of a model of mmdet or mmseg."""
    if isinstance(found, Segmentation):
        from mmseg.structures import SegDataSample

        labels = torch.from_numpy(found.labels.astype(np.int64))[None]
        return SegDataSample(pred_sem_seg=PixelData(data=labels))
    from mmdet.structures import DetDataSample

    parts = dict(bboxes=found.boxes, scores=found.scores, labels=found.labels)
    if found.masks is not None:
        parts['masks'] = found.masks
    instances = {name: torch.from_numpy(part) for name, part in parts.items()}
    return DetDataSample(pred_instances=InstanceData(**instances))


@torch.no_grad()
def draw(
    cfg: Config, checkpoint: str, runner: Runner, num_images: int, score_thr: float
) -> list[list[tuple]]:
    """Return pictures and legends of PyTorch and of the file, for spaced images.

    Raises:
        ValueError: the file is no detector and no segmentor.
    """
    if runner.metadata.task not in ('detection', 'segmentation'):
        raise UserError(
            f'the file must be a detector or a segmentor, got {runner.metadata.task}'
        )
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    model = MODELS.build(cfg.model)
    load_checkpoint(model, checkpoint, map_location='cpu')
    model.eval()
    visualizer = VISUALIZERS.build(dict(type=cfg.visualizer.type, name='draw_export'))
    visualizer.dataset_meta = dataset.metainfo
    pictures = []
    for index in (np.arange(num_images) + 0.5) * len(dataset) // num_images:
        data = dataset[int(index)]
        path = data['data_samples'].img_path
        image = read_image(path)
        (sample,) = model.test_step(pseudo_collate([data]))
        samples = sample, as_sample(runner(path))
        pictures.append(
            [draw_prediction(image, each, visualizer, score_thr) for each in samples]
        )
    return pictures


def save(pictures: list[list[tuple]], titles: tuple[str, ...], out_file: Path):
    """Write rows of pictures, with a title above each column."""
    figure, axes = plt.subplots(
        len(pictures),
        len(titles),
        figsize=(4 * len(titles), 4 * len(pictures)),
        layout='constrained',
        squeeze=False,
        subplot_kw=dict(xticks=[], yticks=[]),
    )
    for row, line in zip(axes, pictures, strict=True):
        for axis, picture in zip(row, line, strict=True):
            show(axis, *picture)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    figure.savefig(out_file, dpi=100)
    plt.close(figure)


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'config', type=config_file, help='config that the file was exported from'
    )
    parser.add_argument('checkpoint', help='checkpoint that the file was exported from')
    parser.add_argument('file', type=Path, help='exported .onnx, .pt2 or .xml file')
    parser.add_argument('--out', type=Path, required=True, help='picture to write')
    parser.add_argument('--num-images', type=positive, default=2)
    parser.add_argument(
        '--score-thr', type=float, default=0.5, help='lowest score that is drawn'
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='let a .pt2 file run the code that it contains',
    )
    args = parser.parse_args(argv)
    cfg = Config.fromfile(args.config)
    init_default_scope(cfg.default_scope)
    runner = load(args.file, trust_checkpoint=args.trust_checkpoint)
    pictures = draw(cfg, args.checkpoint, runner, args.num_images, args.score_thr)
    save(pictures, ('PyTorch', RUNTIMES[args.file.suffix]), args.out)
    print(f'PyTorch beside {args.file}: {args.out}')


if __name__ == '__main__':
    run_main(main)
