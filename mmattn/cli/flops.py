"""Print the parameters and FLOPs of the model in a config, module by module.

The config may be of mmattn, mmdetection, mmsegmentation or mmpretrain. The tool needs
no data set, no checkpoint and no GPU, and downloads nothing. The image size that a
ViT's position embedding is made for changes its parameters, but not its FLOPs:
--cfg-options model.backbone.img_size=448 counts another size.

FLOPs of a model with Fourier transforms are printed twice, with and without the
transforms. Papers that run them in a fused kernel print the FLOPs without them, since
their counters do not see inside it. FLOPs of a model with hard-masked attention are
printed twice, too: with the pairs of tokens that its masks leave, and with all pairs,
as papers print models that run it as plain attention.

Multi-scale deformable attention counts, besides its linear layers, five for each
channel of each point: four pixels and a weight.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from rich.console import Console
from rich.table import Table

from mmattn.errors import UserError

from ..analysis import Complexity, count, paper_rows
from .terminal import add_config, config_of, positive, print_table

CONVENTION = (
    'FLOPs are multiply-accumulates of convolutions, linear layers and matrix products.'
)
TRANSFORMS = (
    'Fourier transforms of N values count N log2 N. "without transforms" leaves out '
    'what a fused kernel hides: transforms, and the products between them.'
)
MASKS = (
    'FLOPs are mask-credited: a head with a hard R x R mask counts R^2 keys for each '
    'patch, one with a soft mask all; "dense" counts all keys in every head.'
)
DEFAULT_SHAPES = {'mmpretrain': (224, 224), 'mmdet': (800, 1280), 'mmseg': (512, 2048)}
# Steps of test pipelines that fix the size, and their key: a side, or width and height.
SIZES = {'CenterCrop': 'crop_size', 'Resize': 'scale'}
DEVIATION_ROUNDING = 0.05  # per cent, of the deviations in the table file


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config(parser)
    parser.add_argument(
        '--shape',
        nargs='+',
        type=positive,
        metavar='SIDE',
        help='height and width of the image, or one number for both; default: the size '
        "of the config's test pipeline for a classifier (else 224 224), 800 1280 for "
        'detection, 512 2048 for segmentation; with --compare the size of the '
        "paper's figures, if there is only one",
    )
    parser.add_argument(
        '--depth', type=int, default=2, help='levels of the module tree (default: 2)'
    )
    parser.add_argument(
        '--compare',
        action='store_true',
        help="compare with the paper's figures for this config and shape; exit with 1 "
        'if one deviates by more than the table file allows, with 2 if there is none',
    )
    parser.add_argument(
        '--device',
        default='meta',
        help='meta (the default) computes shapes only; models that read numbers '
        'other than sizes out of tensors need cpu',
    )
    args = parser.parse_args(argv)
    if args.shape is not None and len(args.shape) > 2:
        parser.error(f'--shape takes one or two numbers, got {args.shape}')
    return args


def image_shape(shape: list[int] | None, cfg: Config) -> tuple[int, int]:
    """Return the height and width to count at."""
    if shape is not None:
        return shape[0], shape[-1]
    scope = cfg.get('default_scope')
    if scope not in DEFAULT_SHAPES:
        raise UserError(
            f'--shape is needed: default_scope is {scope!r}, and defaults exist for '
            f'{", ".join(DEFAULT_SHAPES)} only'
        )
    own = classified_shape(cfg) if scope == 'mmpretrain' else None
    return own or DEFAULT_SHAPES[scope]


def classified_shape(cfg: Config) -> tuple[int, int] | None:
    """Return the size of the images that a classifier is tested on, or None."""
    size = _entry(cfg, 'model.backbone.img_size')
    for step in _entry(cfg, 'test_dataloader.dataset.pipeline') or ():
        size_of_step = step.get(SIZES.get(step.get('type')))
        if size_of_step is not None and not step.get('keep_ratio'):
            size = size_of_step if isinstance(size_of_step, int) else size_of_step[::-1]
    return (size, size) if isinstance(size, int) else size and tuple(size)


def tree(model: Complexity, depth: int) -> Table:
    """Build the table of modules, with a column for each convention that differs."""
    conventions = ['without transforms'] if model.transforms else []
    conventions += ['dense'] if model.outside_masks else []
    titles = [f'{convention} (G)' for convention in conventions]
    table = Table(box=None, pad_edge=False)
    table.add_column('module', no_wrap=True)
    for title in ('params (M)', 'FLOPs (G)', *titles, 'FLOPs (%)'):
        table.add_column(title, justify='right', no_wrap=True)
    for name, part in model.walk(depth):
        level = name.count('.') + 1 if name else 0
        if part.params or part.flops:
            table.add_row(
                '  ' * level + (name.rpartition('.')[2] or 'model'),
                f'{part.params / 1e6:.3f}',
                f'{part.flops / 1e9:.3f}',
                *(f'{part.flops_in(c) / 1e9:.3f}' for c in conventions),
                f'{100 * part.flops / max(1, model.flops):.1f}',
            )
    return table


def paper_rows_of(config: str, cfg: Config, shape: tuple[int, int]) -> list[dict]:
    """Return the table file's rows for a config: those with the most `options`."""
    rows = [row for row in rows_of_any_shape(config, cfg) if row['shape'] == [*shape]]
    most = max((len(row.get('options', {})) for row in rows), default=0)
    return [row for row in rows if len(row.get('options', {})) == most]


def rows_of_any_shape(config: str, cfg: Config) -> list[dict]:
    """Return the table file's rows whose config and options are the given ones."""
    return [
        row
        for row in paper_rows()
        if Path(config).resolve().match(row['config'])
        and all(_entry(cfg, key) == v for key, v in row.get('options', {}).items())
    ]


def compared_shape(config: str, cfg: Config, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the only shape of the paper's figures, or the given one."""
    shapes = {tuple(row['shape']) for row in rows_of_any_shape(config, cfg)}
    return shapes.pop() if len(shapes) == 1 else shape


def _entry(cfg: Config, key: str):
    for name in key.split('.'):
        cfg = cfg.get(name) if isinstance(cfg, Mapping | Config) else None
    return cfg


def comparison(model: Complexity, row: dict) -> tuple[Table, bool]:
    """Return a table of a paper's row beside ours, and whether ours is near enough."""
    model = model.part(row.get('part', ''))
    convention = row.get('convention', 'with transforms')
    table = Table(box=None, pad_edge=False)
    for title in ('', 'paper', 'ours', 'deviation (%)', 'allowed (%)'):
        table.add_column(title, justify='right', no_wrap=True)
    near = True
    for key, unit, value in (
        ('params', 'M', model.params / 1e6),
        ('flops', 'G', model.flops_in(convention) / 1e9),
    ):
        if key not in row:
            continue
        paper, allowed = row[key]['paper'], row[key]['deviation']
        deviation = 100 * (value / paper - 1)
        near = near and abs(deviation) <= abs(allowed) + DEVIATION_ROUNDING
        table.add_row(
            f'{key} ({unit})',
            f'{paper}',
            f'{value:#.4g}' if value < 1 else f'{value:.3f}',
            f'{deviation:+.2f}',
            f'{allowed:+}',
        )
    return table, near


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    cfg = config_of(args)
    shape = image_shape(args.shape, cfg)
    if args.compare and args.shape is None:
        shape = compared_shape(args.config, cfg, shape)
    model = count(cfg, shape, device=args.device)
    console = Console()
    about = [CONVENTION]
    about += [TRANSFORMS] if model.transforms else []
    about += [MASKS] if model.outside_masks else []
    heading = f'{args.config} at {shape[0]}x{shape[1]}.'
    console.print(heading, *about, soft_wrap=True)
    print_table(tree(model, args.depth))
    if not args.compare:
        return 0
    rows = paper_rows_of(args.config, cfg, shape)
    if not rows:
        print(f'no paper has a figure for {args.config} at {shape}', file=sys.stderr)
        return 2
    status = 0
    for row in rows:
        table, near = comparison(model, row)
        about = [row[key] for key in ('source', 'part', 'convention') if key in row]
        console.print('; '.join(about), soft_wrap=True)
        print_table(table)
        if 'note' in row:
            console.print(row['note'], soft_wrap=True)
        status = status or int(not near)
    return status
