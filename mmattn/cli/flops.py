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
from typing import TYPE_CHECKING

from mmattn.errors import UserError

from .terminal import add_config, add_shape, command_parser, config_of, print_table

if TYPE_CHECKING:  # --help need not wait for these
    from mmengine.config import Config
    from rich.table import Table

    from ..analysis import Complexity

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


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    add_config(parser)
    add_shape(
        parser,
        "the size of the config's test pipeline for a classifier (else 224 224), "
        '800 1280 for detection, 512 2048 for segmentation',
    )
    parser.add_argument(
        '--depth', type=int, default=2, help='levels of the module tree (default: 2)'
    )
    parser.add_argument(
        '--device',
        default='meta',
        help='meta (the default) computes shapes only; models that read numbers '
        'other than sizes out of tensors need cpu',
    )
    return parser.parse_args(argv)


def image_shape(shape: list[int] | None, cfg: 'Config') -> tuple[int, int]:
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


def classified_shape(cfg: 'Config') -> tuple[int, int] | None:
    """Return the size of the images that a classifier is tested on, or None."""
    size = _entry(cfg, 'model.backbone.img_size')
    for step in _entry(cfg, 'test_dataloader.dataset.pipeline') or ():
        size_of_step = step.get(SIZES.get(step.get('type')))
        if size_of_step is not None and not step.get('keep_ratio'):
            size = size_of_step if isinstance(size_of_step, int) else size_of_step[::-1]
    return (size, size) if isinstance(size, int) else size and tuple(size)


def tree(model: 'Complexity', depth: int) -> 'Table':
    """Build the table of modules, with a column for each convention that differs."""
    from rich.table import Table

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


def _entry(cfg: 'Config', key: str):
    for name in key.split('.'):
        cfg = cfg.get(name) if hasattr(cfg, 'get') else None
    return cfg


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from rich.console import Console

    from ..analysis import count

    cfg = config_of(args)
    shape = image_shape(args.shape, cfg)
    model = count(cfg, shape, device=args.device)
    console = Console()
    about = [CONVENTION]
    about += [TRANSFORMS] if model.transforms else []
    about += [MASKS] if model.outside_masks else []
    heading = f'{args.config} at {shape[0]}x{shape[1]}.'
    console.print(heading, *about, soft_wrap=True)
    print_table(tree(model, args.depth))
    return 0
