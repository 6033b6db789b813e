"""Choose the tiles of the Triton kernels by time, for the GPU of this machine.

Runs a training step of a config's backbone and times neighbors of the tiles that its
operators use. Those that are faster are kept in the cache by the name of the device,
and all later runs on such a device take them. Prints the table, for a report. Without
it, tiles were chosen by counted instructions. `MMATTN_TUNE=1 mmattn train` does this
before the first step, at the batch and precision of the run.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from mmattn.errors import UserError

from .flops import image_shape
from .terminal import add_config, add_shape, command_parser, config_of, positive

if TYPE_CHECKING:
    import torch
    from mmengine.config import Config


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    add_config(parser)
    add_shape(parser, 'as `mmattn flops`')
    parser.add_argument('--batch', type=positive, default=2, help='default: 2')
    parser.add_argument(
        '--dtype', choices=['float32', 'float16', 'bfloat16'], default='bfloat16',
        help='of autocast (default: bfloat16); float32 is without it',
    )  # fmt: skip
    return parser.parse_args(argv)


def step(backbone: 'torch.nn.Module', images: 'torch.Tensor', dtype: 'torch.dtype'):
    """Run forward and backward under autocast."""
    import torch

    with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
        maps = backbone(images)
    sum(x.float().mean() for x in maps).backward()


def tune_backbone(
    cfg: 'Config', batch: int, dtype: str, shape: list[int] | None = None
) -> int:
    """Time the tiles of a config's backbone, print the table, and keep what is faster.

    Args:
        cfg: the config.
        batch: images of a step.
        dtype: of autocast; float32 is without it.
        shape: of the images; None takes that of `mmattn flops`.

    Returns:
        The number of tiles that are faster.

    Raises:
        ValueError: there is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise UserError('choosing tiles by time requires a GPU, and PyTorch sees none')
    from triton.testing import do_bench

    from mmattn.analysis.flops import build
    from mmattn.ops.triton.tune import keep, tune

    device = torch.cuda.get_device_name()
    shape = image_shape(shape, cfg)
    backbone = build(cfg, 'cuda').backbone.train()
    images = torch.randn(batch, 3, *shape, device='cuda')
    run = partial(step, backbone, images, getattr(torch, dtype))
    chosen = []
    print(f'{device}, {cfg.filename}, {batch} x {shape[0]} x {shape[1]}')
    print('table | key | before | now | times as fast')
    for x in tune(run, partial(do_bench, return_mode='median')):
        chosen.append(x)
        print(f'{x.table.name} | {x.key} | {x.before} | {x.sizes} | {x.gain:.2f}')
        keep(chosen, device)
    print(f'{len(chosen)} tiles are faster')
    return len(chosen)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    tune_backbone(config_of(args), args.batch, args.dtype, args.shape)
    return 0
