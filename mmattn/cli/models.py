"""List the configs with their parameters, FLOPs and papers' results."""

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..apis.model_index import list_models, models_table
from ..errors import UserError

if TYPE_CHECKING:
    from ..data.archs import Arch

WIDTH = 160  # of a table in a file


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--search', help='list names, tasks or papers with this text only'
    )
    parser.add_argument(
        '--names', action='store_true', help='print one name a line, and nothing else'
    )
    parser.add_argument(
        '--backbones',
        action='store_true',
        help='list the backbones of `data convert --arch` and `mmattn.finetune`, '
        'with the weights that they start from',
    )
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if args.backbones:
        from ..data.archs import archs

        chosen = (a for a in archs() if (args.search or '') in a.name)
        console.print(backbones_table(chosen))
        return
    found = list_models(args.search)
    if not found:
        raise UserError(f'no model matches {args.search!r}; `mmattn models` lists all')
    if args.names:
        print(*(model.name for model in found), sep='\n')
        return
    console.print(models_table(found))


def backbones_table(found: 'Iterable[Arch]') -> Table:
    """Return a table of backbones and their starts."""
    table = Table(box=None, pad_edge=False, header_style='bold')
    for title in ('backbone', 'parameters', 'starts from', 'license of the weights'):
        table.add_column(title, justify='right' if title == 'parameters' else 'left')
    for arch in found:
        start = arch.start or 'random weights'
        if arch.related:
            start += ', of a related network'
        unknown = 'unknown' if arch.start else ''
        size = f'{arch.parameters / 1e6:.1f} M'
        table.add_row(arch.name, size, start, arch.license or unknown)
    return table
