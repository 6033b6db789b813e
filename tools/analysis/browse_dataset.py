"""Draw the training images as a config augments them, with their annotations.

--output-dir DIR saves the images, and --not-show opens no window. The tool of the
config's package runs for detection and segmentation. mmpretrain's calls a private
function of matplotlib and fails with current versions, so this tool draws
classification itself.
"""

import argparse
import sys
from pathlib import Path

from mmengine.registry import DATASETS, VISUALIZERS, init_default_scope

from mmattn.cli.package_tool import package_of_config, run_tool
from mmattn.cli.terminal import add_config, config_of

# mmseg has another tool in misc/, which draws the classes of the data set's type, not
# the config's.
TOOL = 'analysis_tools/browse_dataset.py'


def browse_classes(argv: list[str]):
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    add_config(parser)
    parser.add_argument('--output-dir', type=Path, help='folder for the images')
    parser.add_argument('--not-show', action='store_true', help='open no window')
    parser.add_argument('--phase', choices=['train', 'val', 'test'], default='train')
    parser.add_argument('--show-number', type=int, help='images, default: all')
    parser.add_argument(
        '--show-interval', type=float, default=2, help='seconds each image is shown'
    )
    args = parser.parse_args(argv)
    cfg = config_of(args)
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg[f'{args.phase}_dataloader'].dataset)
    visualizer = VISUALIZERS.build(cfg.visualizer)
    visualizer.dataset_meta = dataset.metainfo
    for index in range(len(dataset))[: args.show_number]:
        item = dataset[index]
        sample = item['data_samples']
        name = Path(sample.get('img_path', f'{index}.jpg')).name
        visualizer.visualize_cls(
            item['inputs'].flip(0).permute(1, 2, 0).numpy(),  # (C, H, W) to RGB
            sample,
            name=name,
            show=not args.not_show,
            wait_time=args.show_interval,
            out_file=args.output_dir and str(args.output_dir / name),
        )


def main(argv: list[str]):
    package = package_of_config(argv, __doc__)
    if package == 'mmpretrain':
        browse_classes(argv)
    else:
        run_tool(package, TOOL, argv)


if __name__ == '__main__':
    main(sys.argv[1:])
