"""Train the model of a config of mmdet, mmsegmentation or mmpretrain."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mmattn.errors import UserError

from .launch import build_runner, load_config, make_parser

if TYPE_CHECKING:
    from mmengine.config import Config

TUNE = 'MMATTN_TUNE'  # 1 chooses the tiles of kernels by time before the first step
AMP_WRAPPER = 'mmattn.AmpOptimWrapper'
AMP_REPLACES = ('OptimWrapper', 'AmpOptimWrapper', AMP_WRAPPER)


def parse_args(argv: list[str] | None = None):
    parser = make_parser(__doc__)
    parser.add_argument(
        '--amp', action='store_true', help='train with automatic mixed precision'
    )
    parser.add_argument(
        '--amp-dtype',
        choices=['float16', 'bfloat16'],
        help="lower precision of --amp, which it implies; by default the config's, "
        'else float16 on a GPU and bfloat16 on a CPU',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate with the batch size, from the base batch size '
        'in the config',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='checkpoint to resume from; without a value, the latest in the work dir',
    )
    parser.add_argument(
        '--no-validate', action='store_true', help='train without validation'
    )
    parser.add_argument(
        '--pretrained',
        metavar='NAME|FILE|WORK_DIR|none',
        help='weights to start from: a name of docs/weights.md, a file or an address. '
        'A work dir or a checkpoint of a model of the same kind gives all but the last '
        'layers, if its number of classes is another; any other gives its backbone. '
        "'none' starts from random weights; default: the config's",
    )
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='print what the run would start from, and exit',
    )
    return parser.parse_args(argv)


def use_mixed_precision(cfg: 'Config', dtype: str | None):
    wrapper = cfg.optim_wrapper
    replaced = wrapper.get('type', 'OptimWrapper')
    if replaced not in AMP_REPLACES:
        raise UserError(
            f'--amp can replace one of {AMP_REPLACES}, but optim_wrapper.type is '
            f'{replaced!r}'
        )
    wrapper.type = AMP_WRAPPER
    wrapper.setdefault('loss_scale', 'dynamic')
    if dtype is not None:
        wrapper.dtype = dtype


def scale_learning_rate(cfg: 'Config'):
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise UserError(
            '--auto-scale-lr requires auto_scale_lr.base_batch_size in the config'
        )
    cfg.auto_scale_lr.enable = True


def main(argv: list[str] | None = None):
    args = parse_args(argv)
    from ..apis.find import run_checkpoint
    from ..engine.first_screen import SHOWN
    from ..engine.start import fetch_start, settle_start, use_pretrained

    cfg = load_config(args, dataloader='train_dataloader')
    if args.amp or args.amp_dtype is not None:
        use_mixed_precision(cfg, args.amp_dtype)
    tunes = os.environ.get(TUNE, '0')
    if tunes not in ('0', '1'):
        raise UserError(f'{TUNE} must be 0 or 1, got {tunes!r}')
    if tunes == '1' and not args.dry_run:
        from .tune import tune_backbone

        wrapper, dtype = cfg.optim_wrapper, 'float32'
        if 'Amp' in wrapper.get('type', ''):
            dtype = wrapper.get('dtype', 'float16')
        tune_backbone(cfg, cfg.train_dataloader.get('batch_size', 1), dtype)
    if args.auto_scale_lr:
        scale_learning_rate(cfg)
    if args.no_validate:
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    if args.pretrained is not None:
        given = args.pretrained
        if Path(given).is_dir():
            given = str(run_checkpoint(Path(given)))
        use_pretrained(cfg, given)
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
    start = settle_start(cfg)
    if args.dry_run:
        print(start.message)
        return
    runner = build_runner(cfg)
    runner.logger.log(start.level, start.message, extra=SHOWN)
    fetch_start(start)
    runner.train()
