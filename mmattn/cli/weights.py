"""List, describe, download and verify the files of `mmattn/weights/names.yml`.

    mmattn weights list
    mmattn weights info pvt_v2_b2
    mmattn weights get pvt_v2_b2
    mmattn weights verify pvt_v2_b2

`get` prints the path of the local copy. Files from http addresses are kept in the cache
of `torch.hub` (`TORCH_HOME` moves it), timm's files in the cache of the Hugging Face
hub (`HF_HOME`). A file in the cache needs no network, and `http_proxy` and
`https_proxy` are obeyed. `HF_HUB_OFFLINE=1` forbids downloads from the hub.

`list` says how many digits of a file's SHA-256 are known and compared. The content of
an unverified file is whatever its server sends.

`verify` loads every tensor of a file, predicts three photographs of scikit-image by the
test pipeline of the file's config, and compares scores and boxes with those that
`names.yml` records. A file is

    passed       if they are the same,
    no record    if it loads and there is nothing to compare,
    failed       if it is another file, cannot be read, does not fit or differs,
    skipped      if it is neither in the cache nor in reach.

The exit status is 1 if a file failed. `--record` prints what to put into `names.yml`.
"""

import argparse
from pathlib import Path

from rich.table import Table

from ..apis.model_index import list_models
from ..weights.names import SCHEME, config_of, find_published, published_files
from .terminal import command_parser, print_table


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    actions = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    actions.add_parser('list', help='list the names, and which files are in the cache')
    for action, text in (
        ('info', 'print all that is known of a file'),
        ('get', 'download a file, and print its path'),
    ):
        one = actions.add_parser(action, help=text)
        one.add_argument('name', type=_name, metavar='NAME')
    several = actions.add_parser('verify', help='load files and predict photographs')
    several.add_argument('names', nargs='*', type=_name, metavar='NAME')
    several.add_argument('--all', action='store_true', help='verify every file')
    several.add_argument(
        '--record', action='store_true', help='also print entries for names.yml'
    )
    args = parser.parse_args(argv)
    if args.action == 'verify' and bool(args.names) == args.all:
        parser.error('verify takes names or --all')
    return args


def _name(text: str) -> str:
    """Return a name of the list without `mmattn://`, for an argument."""
    try:
        find_published(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text.removeprefix(SCHEME)


def backbone_of(entry: dict) -> str:
    """Return the call that builds the backbone of a file."""
    arguments = ', '.join(f'{key}={value!r}' for key, value in entry['args'].items())
    return f'{entry["type"]}({arguments})'


def size_of(path: Path) -> str:
    return f'{path.stat().st_size / 1e6:.1f} MB'


def digits_of(entry: dict) -> str:
    """Return by how much of its SHA-256 a file is verified."""
    known = len(entry.get('sha256', ''))
    return f'{known} digits' if known else 'unverified'


def table() -> Table:
    """Return the table of all files."""
    from ..weights.resolve import place_in_cache

    found = Table(box=None, pad_edge=False, header_style='bold')
    for title in ('name', 'backbone', 'license', 'SHA-256', 'in the cache'):
        found.add_column(title, no_wrap=True)
    for name, entry in published_files().items():
        place, kept = place_in_cache(SCHEME + name)
        found.add_row(
            name,
            backbone_of(entry),
            entry.get('license', 'unknown'),
            digits_of(entry),
            size_of(place) if kept else '',
        )
    return found


def describe(name: str) -> str:
    """Return all that is known of a file, one fact a line."""
    from ..weights.resolve import place_in_cache

    entry = published_files()[name]
    place, kept = place_in_cache(SCHEME + name)
    config = config_of(entry)
    facts = {
        'backbone': backbone_of(entry),
        'address': entry['url'],
        'SHA-256': entry.get('sha256', 'unknown'),
        'license': entry.get('license', 'unknown'),
        'config': config or 'none: the file is used as a backbone',
        'cache': f'{place}, {size_of(place) if kept else "not there"}',
        'record': 'yes' if 'record' in entry else 'none to verify predictions by',
    }
    for model in list_models(entry.get('figures', '\0')):
        if model.name == config:
            figures = [f'{key} {value}' for key, value in model.metrics.items()]
            facts['figures'] = f'{", ".join(figures)} ({model.paper})'
    return '\n'.join([name, *(f'  {key:<9} {value}' for key, value in facts.items())])


def download(name: str) -> Path:
    """Return the path of the local copy of a file, after reading it once.

    Raises:
        ValueError: it is no checkpoint, or its SHA-256 is another.
        OSError: it is neither in the cache nor in reach.
    """
    from ..weights.load import find_weights
    from ..weights.read import read_checkpoint
    from ..weights.resolve import local_checkpoint

    path = local_checkpoint(SCHEME + name)
    find_weights(read_checkpoint(path, 'cpu'), str(path))
    return path


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    match args.action:
        case 'list':
            print_table(table())
        case 'info':
            print(describe(args.name))
        case 'get':
            print(download(args.name))
        case 'verify':
            from .verify_weights import verify_all  # builds models of mm packages

            return verify_all(args.names or [*published_files()], args.record)
    return 0
