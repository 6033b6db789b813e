"""Parse numbers, and print tables and errors, for command lines."""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import UserError
from ..files.config_files import SCOPE, find_config, merge_options, read_config_file

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


def command_parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser whose help shows the docstring of a command as it is."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def positive(text: str) -> int:
    """Return a positive integer, as the `type` of an argument."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a positive integer, got {text!r}')
    return int(text)


def share(text: str) -> float:
    """Return a number from 0 to 1, as the `type` of an argument."""
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f'must be from 0 to 1, got {text!r}')


def config_file(text: str) -> str:
    """Return the path of a config file or of one of our names, for an argument."""
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


def add_overlap(parser: argparse.ArgumentParser):
    """Add `--overlap` of tiles."""
    parser.add_argument(
        '--overlap',
        type=float,
        default=0.2,
        help='share of a tile in common with the next (default: %(default)s)',
    )


def add_trust(parser: argparse.ArgumentParser):
    """Add `--trust-checkpoint`."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='let checkpoints run the code that they contain while they are read; by '
        'default such a checkpoint is refused',
    )


class _Entries(argparse.Action):
    """Read entries by mmengine; what has no `=` is an error of the user."""

    def __call__(self, parser, namespace, values, option_string=None):
        from mmengine.config import DictAction  # not needed for an exported file

        for value in values:
            if not value.partition('=')[1] or value.startswith('='):
                parser.error(f'{option_string} must be key=value, got {value!r}')
        read = DictAction(self.option_strings, self.dest)
        read(parser, namespace, values, option_string)


def add_cfg_options(parser: argparse.ArgumentParser):
    """Add `--cfg-options`, a dict of entries of the config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_Entries,
        metavar='KEY=VALUE',
        help='config entries to override; lists as key="[a,b]"',
    )


def parse_run(
    parser: argparse.ArgumentParser, argv: list[str] | None
) -> argparse.Namespace:
    """Parse the arguments of `add_model`.

    `apis.find_model` finds the config and the weights.
    """
    args = parser.parse_args(argv)
    from mmattn.apis.find import find_model

    try:
        found = find_model(args.config, args.checkpoint, args.cfg_options)
        if found.cfg is None:
            raise UserError(f'{args.config} is exported already: pass its work dir')
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    given, args.config = args.config, str(found.cfg.filename)
    args.cfg, args.checkpoint = found.cfg, found.weights
    if args.config != given:
        print(f'{args.config}, {args.checkpoint}', file=sys.stderr)
    return args


def config_of(args: argparse.Namespace):
    """Return the config of the arguments, with the entries overridden."""
    if 'cfg' not in args:
        args.cfg = read_config_file(args.config)
        merge_options(args.cfg, args.cfg_options)
    return args.cfg


def add_shape(parser: argparse.ArgumentParser, default: str):
    """Add `--shape`, a height and a width, or one number for both."""
    parser.add_argument(
        '--shape',
        nargs='+',
        type=positive,
        action=_Sides,
        metavar='SIDE',
        help='height and width of the image, or one number for both; default: '
        + default,
    )


class _Sides(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        if len(values) > 2:
            parser.error(f'{option_string} takes one or two numbers, got {values}')
        namespace.shape = values


def print_table(table):
    """Print a `rich.table.Table` whose lines may be wider than the terminal."""
    from rich.console import Console

    needed = Console(width=WIDEST).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)
