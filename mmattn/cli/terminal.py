"""Parse numbers, and print tables and errors, for command lines."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError
from ..files import read_config_file

# Causes that are mistakes in a program, such as a transform of a user.
MISTAKES = AssertionError, AttributeError, LookupError, NameError, TypeError
CONFIG_SUFFIXES = '.py', '.json', '.yml', '.yaml'  # that mmengine reads
WIDEST = 1000
ONE_ERROR = 'MMATTN_ONE_ERROR'  # set where a launcher prints the errors


def run_main(main: Callable[[], int | None]):
    """Run the main function of a tool, and exit with the status that it returns.

    If the user is to correct something or a file cannot be opened, print only the
    message and exit with 1. Other errors keep their traceback, and so do those that a
    mistake in a program has caused. `python -X dev` prints all tracebacks. Of several
    processes of `mmattn.cli.torchrun`, the first that fails is told of.
    """
    try:
        status = main()
    except Exception as error:
        is_expected = isinstance(error, (UserError, OSError))
        if sys.flags.dev_mode or isinstance(error.__cause__, MISTAKES):
            is_expected = False
        if os.environ.get(ONE_ERROR):
            _tell_launcher(error if is_expected else None)
            sys.exit(1)
        if not is_expected:
            raise
        sys.exit(f'{Path(sys.argv[0]).stem}: {error}')
    _end_process_group()
    sys.exit(status)


def _end_process_group():
    """End what torch.distributed has started, if anything.

    A process that exits with its group may be aborted by a thread of gloo. torchrun
    then calls a run that has succeeded failed.
    """
    distributed = sys.modules.get('torch.distributed')
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _tell_launcher(error: Exception | None):
    """Leave an error to the process that started this one; None for a traceback."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    if error is not None:
        error = UserError(f'{Path(sys.argv[0]).stem}: {error}')
    get_error_handler().record_exception(error or sys.exception())


def positive(text: str) -> int:
    """Return a positive integer, as the `type` of an argument.

    Raises:
        argparse.ArgumentTypeError: the text is another number or none.
    """
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a positive integer, got {text!r}')
    return int(text)


def config_file(text: str) -> str:
    """Return the path of a config file or of one of our names, for an argument.

    Raises:
        argparse.ArgumentTypeError: there is no such file or name, or the file has
            another suffix.
    """
    path = Path(text)
    if not path.exists() and path.suffix in ('', '.py'):
        from mmattn.compat.mmengine_scopes import SCOPE, find_config

        try:
            return str(find_config(text.removeprefix(f'{SCOPE}::')))
        except FileNotFoundError as error:
            raise argparse.ArgumentTypeError(
                f'there is no config file at {text}, and {error}'
            ) from error
    if not path.is_file():
        raise argparse.ArgumentTypeError(f'there is no config file at {text}')
    if path.suffix not in CONFIG_SUFFIXES:
        suffixes = ', '.join(CONFIG_SUFFIXES)
        raise argparse.ArgumentTypeError(f'must be a file of {suffixes}, got {text}')
    return text


def _config_or_folder(text: str) -> str:
    return text if Path(text).is_dir() else config_file(text)


def add_config(parser: argparse.ArgumentParser, *, with_checkpoint: bool = False):
    """Add the arguments that `config_of` reads: a config, and entries to override.

    Args:
        parser: the parser.
        with_checkpoint: also add a checkpoint. A work dir may stand for both;
            `parse_run` finds them in it.
    """
    from mmengine.config import DictAction

    what = 'config file of mmdet, mmseg or mmpretrain, or the name of one of ours'
    if with_checkpoint:
        parser.add_argument(
            'config', type=_config_or_folder, help=f'work dir of a run, or {what}'
        )
        parser.add_argument(
            'checkpoint',
            nargs='?',
            help="checkpoint file; by default a work dir's best one, else its last",
        )
    else:
        parser.add_argument('config', type=config_file, help=what)
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='config entries to override, key=value; lists as key="[a,b]"',
    )


def parse_run(
    parser: argparse.ArgumentParser, argv: list[str] | None
) -> argparse.Namespace:
    """Parse arguments with a config and a checkpoint, or with a work dir of both."""
    # Options may stand between the two.
    args = parser.parse_intermixed_args(argv)
    folder = Path(args.config)
    if folder.is_dir():
        from mmattn.apis.find import run_checkpoint, run_config

        try:
            args.config = str(run_config(folder))
            args.checkpoint = args.checkpoint or str(run_checkpoint(folder))
        except (FileNotFoundError, ValueError) as error:
            parser.error(str(error))
        print(f'{args.config}, {args.checkpoint}', file=sys.stderr)
    elif args.checkpoint is None:
        parser.error(f'{args.config} requires a checkpoint after it')
    return args


def config_of(args: argparse.Namespace):
    """Return the config of the arguments, with the entries overridden."""
    cfg = read_config_file(args.config)
    cfg.merge_from_dict(args.cfg_options or {})
    return cfg


def print_table(table):
    """Print a `rich.table.Table` whose lines may be wider than the terminal."""
    from rich.console import Console

    needed = Console(width=WIDEST).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)
