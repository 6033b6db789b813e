"""Arguments, config and runner that train.py and test.py share."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mmattn.errors import UserError

from .terminal import add_config, add_model, add_trust, config_of

if TYPE_CHECKING:  # --help need not wait for these
    from mmengine.config import Config, ConfigDict
    from mmengine.runner import Runner as MMEngineRunner

OUR_RUNNER = 'mmattn.Runner'
RUNNER_FLAGS = ('trust_checkpoint', 'allow_partial_load')
DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def make_parser(
    description: str, *, with_checkpoint: bool = False
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    if with_checkpoint:
        add_model(parser)
    else:
        add_config(parser)
    parser.add_argument('--work-dir', help='folder of logs, checkpoints and results')
    parser.add_argument(
        '--no-pin-memory', action='store_true', help='pin_memory=False in dataloaders'
    )
    parser.add_argument(
        '--no-persistent-workers',
        action='store_true',
        help='persistent_workers=False in dataloaders',
    )
    add_trust(parser)
    parser.add_argument(
        '--allow-partial-load',
        action='store_true',
        help='warn if a checkpoint and the model do not match; by default this is an '
        'error (see mmattn/weights/load.py)',
    )
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none'
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    return parser


def load_config(args: argparse.Namespace, *, dataloader: str) -> 'Config':
    """Return the config with the shared arguments applied.

    The argument sets the work dir, else the config, else it is `work_dirs/<config>`.

    Raises:
        ValueError: the config has no model or not this dataloader, or a flag requires
            our runner.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = config_of(args)
    if missing := [key for key in ('model', dataloader) if cfg.get(key) is None]:
        raise UserError(
            f'{args.config} has no {" and no ".join(missing)}: pass a whole config, '
            'not a part that others inherit'
        )
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(args.config).stem))
    for name in DATALOADERS:
        if cfg.get(name) is not None:
            cfg[name] = amended_dataloader(cfg[name], cfg.get('default_scope'), args)
    if args.launcher == 'pytorch':
        from ..engine.distributed import join_processes

        chosen = (args.cfg_options or {}).get('env_cfg.dist_cfg.backend')
        join_processes(cfg, chosen)
    for flag in RUNNER_FLAGS:
        if getattr(args, flag):
            if cfg.get('runner_type', OUR_RUNNER) != OUR_RUNNER:
                raise UserError(
                    f'--{flag.replace("_", "-")} requires {OUR_RUNNER}, but the '
                    f"config's runner_type is {cfg.runner_type!r}"
                )
            cfg[flag] = True
    return cfg


def amended_dataloader(
    loader: 'ConfigDict', scope: str | None, args: argparse.Namespace
) -> 'ConfigDict':
    """Return a dataloader's config with its package's defaults and the arguments.

    mmpretrain's own tools add these defaults to its configs, which rely on them.
    """
    defaults, overrides = {}, {}
    if scope == 'mmpretrain':
        defaults = dict(
            pin_memory=True,
            persistent_workers=loader.get('num_workers', 0) > 0,
            collate_fn=dict(type='default_collate'),
        )
    if args.no_pin_memory:
        overrides['pin_memory'] = False
    if args.no_persistent_workers:
        overrides['persistent_workers'] = False
    return type(loader)(defaults | dict(loader) | overrides)


def build_runner(cfg: 'Config') -> 'MMEngineRunner':
    from mmengine.registry import RUNNERS

    from ..engine import Runner

    build = RUNNERS.build if 'runner_type' in cfg else Runner.from_cfg
    return build(cfg)
