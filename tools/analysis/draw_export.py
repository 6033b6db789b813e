"""Draw what an exported file finds in images, beside what PyTorch finds in them.

    python tools/analysis/draw_export.py CONFIG CHECKPOINT model.onnx --out picture.jpg

takes images of the config's validation data. PyTorch predicts by the test pipeline and
the model of the config, and the file runs by `mmattn.export.load`.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import load_checkpoint

import mmattn  # noqa: F401  makes mmcv's operators available
from mmattn.cli.terminal import config_file, positive, run_main
from mmattn.errors import UserError
from mmattn.export import load
from mmattn.export.runner import Runner
from mmattn.images import read_image
from mmattn.images.draw import save_panels
from mmattn.results import SCORE
from mmattn.results.panels import panel
from mmattn.results.samples import as_result

RUNTIMES = {'.onnx': 'ONNX Runtime', '.pt2': 'torch.export', '.xml': 'OpenVINO'}


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
    classes = dataset.metainfo.get('classes')
    named = list(classes) if classes else None, dataset.metainfo.get('palette')
    pictures = []
    for index in (np.arange(num_images) + 0.5) * len(dataset) // num_images:
        data = dataset[int(index)]
        path = data['data_samples'].img_path
        image = read_image(path)
        (sample,) = model.test_step(pseudo_collate([data]))
        found = as_result(sample, *named, image.shape[:2])
        pictures.append(
            [panel(each, image, score_thr) for each in (found, runner(path))]
        )
    return pictures


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
        '--score-thr', type=float, default=SCORE, help='lowest score that is drawn'
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
    save_panels(pictures, ('PyTorch', RUNTIMES[args.file.suffix]), args.out)
    print(f'PyTorch beside {args.file}: {args.out}')


if __name__ == '__main__':
    run_main(main)
