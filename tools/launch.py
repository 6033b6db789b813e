"""What train.py and test.py share: arguments, the config they amend, the runner."""

import argparse
import os
from pathlib import Path

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.registry import RUNNERS
from mmengine.runner import Runner as MMEngineRunner

import mmattn  # noqa: F401  makes mmcv's operators and the config prefixes available
from mmattn.engine import Runner


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--work-dir', help='folder of logs, checkpoints and results')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='config entries to override, key=value; lists as key="[a,b]"',
    )
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none'
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    return parser


def load_config(args: argparse.Namespace) -> Config:
    """The config with the shared arguments applied.

    The work dir is the argument's, else the config's, else `work_dirs/<config name>`.
    """
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = Config.fromfile(args.config)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(args.config).stem))
    if cfg.get('default_scope') == 'mmpretrain':
        # mmpretrain's own tools add these to its configs, which rely on it.
        for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
            if cfg.get(name) is not None:
                defaults = dict(
                    pin_memory=True, collate_fn=dict(type='default_collate')
                )
                cfg[name] = ConfigDict(defaults | dict(cfg[name]))
    return cfg


def build_runner(cfg: Config) -> MMEngineRunner:
    if 'runner_type' in cfg:
        return RUNNERS.build(cfg)
    return Runner.from_cfg(cfg)
