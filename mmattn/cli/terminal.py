"""Parse numbers, and print tables and errors, for command lines."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError
from ..files.config_files import SCOPE, find_config, read_config_file
from ..files.dumped_config import read_dumped_config

# Causes that are mistakes in a program, such as a transform of a user.
MISTAKES = AssertionError, AttributeError, LookupError, NameError, TypeError
CONFIG_SUFFIXES = '.py', '.json', '.yml', '.yaml'  # that mmengine reads
WIDEST = 1000
ONE_ERROR = 'MMATTN_ONE_ERROR'  # set where a launcher prints the errors


def run_main(main: Callable[[], int | None]):
    """Run the main function of a tool, and exit with the status that it returns.

    If the user is to correct something or a file cannot be opened, print only the
    message and exit with 1. Other errors keep their traceback, and so do those that a
    mistake in a program has caused. `python -X dev` prints all tracebacks. If several
    processes of `mmattn.cli.torchrun` fail, only the first one is reported.
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


def share(text: str) -> float:
    """Return a number from 0 to 1, as the `type` of an argument.

    Raises:
        argparse.ArgumentTypeError: the text is another number or none.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f'must be from 0 to 1, got {text!r}')
    return value


def config_file(text: str) -> str:
    """Return the path of a config file or of one of our names, for an argument.

    Raises:
        argparse.ArgumentTypeError: there is no such file or name, or the file has
            another suffix.
    """
    path = Path(text)
    if not path.exists() and path.suffix in ('', '.py'):
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
    from mmattn.weights.names import SCHEME, is_name

    if Path(text).is_dir():
        return text
    if text.startswith(SCHEME) or (not Path(text).exists() and is_name(text)):
        return text
    return config_file(text)


def add_config(parser: argparse.ArgumentParser):
    """Add the arguments that `config_of` reads: a config, and entries to override."""
    parser.add_argument(
        'config',
        type=config_file,
        help='config file of mmdet, mmseg or mmpretrain, or the name of one of ours',
    )
    add_cfg_options(parser)


def add_model(parser: argparse.ArgumentParser):
    """Add the arguments that `parse_run` reads: a model, its weights, and overrides."""
    parser.add_argument(
        'config',
        metavar='MODEL',
        type=_config_or_folder,
        help='work dir of a run, or config file of mmdet, mmseg or mmpretrain, or the '
        'name of one of our configs or of weights',
    )
    parser.add_argument(
        '--weights',
        dest='checkpoint',
        help="path, name or address of weights; of a work dir also 'best' or 'last', "
        'and by default its best one, else its last',
    )
    add_cfg_options(parser)


def add_cfg_options(parser: argparse.ArgumentParser):
    """Add `--cfg-options`, a dict of entries of the config."""
    from mmengine.config import DictAction

    class Entries(DictAction):
        """Read entries; what has no `=` is an error of the user."""

        def __call__(self, parser, namespace, values, option_string=None):
            for value in values:
                if not value.partition('=')[1] or value.startswith('='):
                    parser.error(f'{option_string} must be key=value, got {value!r}')
            super().__call__(parser, namespace, values, option_string)

    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=Entries,
        metavar='KEY=VALUE',
        help='config entries to override; lists as key="[a,b]"',
    )


def parse_run(
    parser: argparse.ArgumentParser, argv: list[str] | None
) -> argparse.Namespace:
    """Parse the arguments of `add_model`.

    A work dir gives its config and weights, and so does a name of weights.
    """
    from mmattn.weights.resolve import check_name

    args = parser.parse_args(argv)
    try:
        _find_model(args)
        if args.checkpoint is None:
            parser.error(f'{args.config} requires --weights')
        check_name(args.checkpoint)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    return args


def _find_model(args: argparse.Namespace):
    """Replace a work dir or a name of weights by its config and weights."""
    given = args.config
    if not Path(given).exists():
        from mmattn.apis.find import named_weights

        config, weights = named_weights(given)
        args.config, args.checkpoint = str(config), args.checkpoint or weights
    args.run_folder = args.config if Path(args.config).is_dir() else None
    if args.run_folder is not None:
        from mmattn.apis.find import CHOICES, run_checkpoint, run_config

        folder = Path(args.run_folder)
        args.config = str(run_config(folder))
        if args.checkpoint is None or args.checkpoint in CHOICES:
            args.checkpoint = str(run_checkpoint(folder, args.checkpoint))
    if args.config != given:
        print(f'{args.config}, {args.checkpoint}', file=sys.stderr)


def config_of(args: argparse.Namespace):
    """Return the config of the arguments, with the entries overridden.

    The config of a work dir is read as data; another one runs. The work dir may have
    moved since, so `work_dir` is where it is now.
    """
    if folder := getattr(args, 'run_folder', None):
        cfg = read_dumped_config(args.config)
        cfg.work_dir = folder
    else:
        cfg = read_config_file(args.config)
    options = args.cfg_options or {}
    cfg.merge_from_dict({k: _as_before(cfg, k, v) for k, v in options.items()})
    return cfg


def _as_before(cfg, key: str, value):
    """Return an option, a list as a tuple where the config has a tuple.

    Some transforms accept only tuples, and `[64,64]` on a command line is a list.
    """
    for name in key.split('.'):
        if isinstance(cfg, list | tuple) and name.isdecimal() and int(name) < len(cfg):
            cfg = cfg[int(name)]
        elif hasattr(cfg, 'get'):
            cfg = cfg.get(name)
        else:
            return value
    return tuple(value) if isinstance(value, list) and isinstance(cfg, tuple) else value


def print_table(table):
    """Print a `rich.table.Table` whose lines may be wider than the terminal."""
    from rich.console import Console

    needed = Console(width=WIDEST).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)
