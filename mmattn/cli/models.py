"""List the configs with their parameters, FLOPs and papers' results."""

import argparse
import sys

from rich.console import Console

from ..apis.model_index import list_models, models_table
from ..errors import UserError

WIDTH = 160  # of a table in a file


def main(argv: list[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--search', help='list names, tasks or papers with this text only'
    )
    parser.add_argument(
        '--names', action='store_true', help='print one name a line, and nothing else'
    )
    args = parser.parse_args(argv)
    found = list_models(args.search)
    if not found:
        raise UserError(f'no model matches {args.search!r}; `mmattn models` lists all')
    if args.names:
        print(*(model.name for model in found), sep='\n')
        return
    Console(width=None if sys.stdout.isatty() else WIDTH).print(models_table(found))
