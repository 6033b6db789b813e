"""The console command `mmattn`: each command is the `main` of a module.

Only the module of the command that runs is imported, and it imports PyTorch and the mm
packages after its arguments are read, so help and errors about options are fast.
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module

import mmattn
from mmattn.errors import MissingPackageError

ABOUT = 'Train and run efficient-attention detectors, segmentors and classifiers.'
# A command, its module, and what it does.
COMMANDS = {
    'predict': ('cli.predict', 'predict objects, label maps or classes, and draw them'),
    'web': ('cli.web', 'open a page: predict, look inside, compare two models'),
    'train': ('cli.train', 'train the model of a config'),
    'test': ('cli.test', 'evaluate a work dir, or a config with --weights'),
    'report': ('cli.report', 'report a run: figures, times, curves and pictures'),
    'export': ('cli.export', 'write a model as ONNX, OpenVINO or torch.export'),
    'flops': ('cli.flops', 'print parameters and FLOPs, module by module'),
    'models': ('cli.models', 'list the configs'),
    'tune': ('cli.tune', 'choose the tiles of kernels by time on this GPU'),
    'weights': ('cli.weights', 'list, download and verify published weights'),
    'env': ('cli.env', 'print versions, backends and problems of this environment'),
    'run': ('cli.run', "run another package's script after `import mmattn`"),
    'data check': (
        'cli.data_check',
        'check the data sets of a config as training does',
    ),
    'data convert': ('cli.data_convert', 'turn your annotated images into a data set'),
    'data prepare': ('data.prepare', 'lay out COCO, ADE20K or ImageNet'),
}


def parse_command(argv: list[str]) -> tuple[str, list[str]]:
    """Return the command and its arguments. Print help or an error, and exit."""
    parser = argparse.ArgumentParser(prog='mmattn', description=ABOUT)
    parser.add_argument('--version', action='version', version=mmattn.__version__)
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    groups = {}
    for name, (_, text) in COMMANDS.items():
        group, _, action = name.rpartition(' ')
        if group and group not in groups:
            below = commands.add_parser(group, help='check, convert and lay out data')
            groups[group] = below.add_subparsers(
                dest='action', required=True, metavar='ACTION'
            )
        (groups[group] if group else commands).add_parser(action, help=text)
    words = 2 if argv and argv[0] in groups else 1
    parser.parse_args(argv[:words])
    return ' '.join(argv[:words]), argv[words:]


def main(argv: list[str] | None = None):
    """Run a command of `mmattn`."""
    from mmattn.cli.terminal import run_main

    command, arguments = parse_command(sys.argv[1:] if argv is None else argv)
    sys.argv = [f'mmattn {command}', *arguments]  # help and errors name argv[0]
    run_main(lambda: main_of(command)())


def main_of(command: str) -> Callable:
    """Return the function of a command.

    Raises:
        MissingPackageError: a package that the command needs is not installed.
    """
    try:
        return import_module(f'mmattn.{COMMANDS[command][0]}').main
    except ModuleNotFoundError as error:
        if (error.name or 'mmattn').partition('.')[0] == 'mmattn':
            raise
        raise MissingPackageError(
            f'the command requires {error.name}, which is not installed: pip install '
            '"mmattn[mm,predict]"'
        ) from error
