"""Draw the FLOPs of models against the size of the image.

    draw_flops.py CONFIG [CONFIG ...] --sizes 160 320 480 640 --out flops_by_size.png

counts each model at square images and writes a csv file beside the picture. Figure 6 of
"Pyramid Vision Transformer" (https://arxiv.org/abs/2102.12122) and Figure 4 of "PVT v2"
(https://arxiv.org/abs/2106.13797) show such curves. A config may be of any mm package,
also by a name such as mmpretrain::resnet/resnet50_8xb32_in1k.py. No data and no weights
are needed. `mmattn flops` says what counts.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

import mmattn  # noqa: F401  makes mmcv's operators and the config prefixes available
from mmattn.analysis import count
from mmattn.analysis.flops import build
from mmattn.apis.find import read_config
from mmattn.cli.terminal import positive, run_main

matplotlib.use('Agg')
from matplotlib import pyplot as plt

SIZES = (160, 320, 480, 640, 800, 960, 1120, 1280)
MARKERS = 'osD^vPX*<>'


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('configs', nargs='+', metavar='CONFIG')
    parser.add_argument(
        '--sizes',
        nargs='+',
        type=positive,
        default=SIZES,
        metavar='SIDE',
        help=f'sides of the images, default: {" ".join(map(str, SIZES))}',
    )
    parser.add_argument('--out', type=Path, default=Path('flops_by_size.png'))
    args = parser.parse_args(argv)
    names = [Path(config).stem for config in args.configs]
    if repeated := {name for name in names if names.count(name) > 1}:
        parser.error(f'configs must have different names, got two of {repeated}')
    return args


def curve(config: str, sizes: Sequence[int]) -> list[float]:
    """Return the billions of FLOPs of a config's model at each size."""
    model = build(read_config(config))
    return [count(model, (size, size)).flops / 1e9 for size in sizes]


def write(curves: Mapping[str, Sequence[float]], sizes: Sequence[int], path: Path):
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(['model', 'size', 'gflops'])
        for name, values in curves.items():
            for size, value in zip(sizes, values, strict=True):
                writer.writerow([name, size, f'{value:.6g}'])


def draw(curves: Mapping[str, Sequence[float]], sizes: Sequence[int], path: Path):
    figure, axes = plt.subplots(figsize=(6, 4), layout='constrained')
    for (name, values), marker in zip(curves.items(), MARKERS * 9, strict=False):
        axes.plot(sizes, values, marker=marker, markersize=4, label=name)
    axes.set(xlabel='height and width (pixels)', ylabel='GFLOPs', ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str] | None = None):
    args = parse_args(argv)
    sizes = sorted({*args.sizes})
    curves = {Path(config).stem: curve(config, sizes) for config in args.configs}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(curves, sizes, args.out)
    write(curves, sizes, args.out.with_suffix('.csv'))
    print(f'FLOPs by size: {args.out}, {args.out.with_suffix(".csv")}')


if __name__ == '__main__':
    run_main(main)
