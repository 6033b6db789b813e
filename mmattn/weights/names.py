"""Published files by the names of `mmattn/weights/names.yml`: `mmattn://pvt_v2_b2`.

It requires neither torch nor mmengine; `mmattn.weights.resolve` downloads.
"""

from difflib import get_close_matches
from functools import cache
from pathlib import Path

import yaml

from mmattn.errors import UserError

SCHEME = 'mmattn://'
# By name, the command that trains a demo's network, and where it leaves the weights.
DEMOS = {
    'hela-ivit-n': (
        'make demo',
        'work_dirs/mask_rcnn_ivit_n_hela/hela-ivit-n.safetensors',
    ),
    'fashion-scenes-ivit-n': (
        'make demo-seg',
        'work_dirs/upernet_ivit_n_fashion_scenes/fashion-scenes-ivit-n.safetensors',
    ),
}


@cache
def published_files() -> dict[str, dict]:
    """Return the entries of `names.yml` by name; its head says what is in one.

    What an entry lacks is unknown.
    """
    return yaml.safe_load(Path(__file__).with_name('names.yml').read_text())


def find_published(name: str) -> dict:
    """Return the entry of a file, by its name with or without `mmattn://`.

    Raises:
        ValueError: no file has this name.
    """
    key = name.removeprefix(SCHEME)
    if key not in published_files():
        raise UserError(f'there are no weights {key!r}: {hint(key)}')
    return published_files()[key]


def hint(name: str) -> str:
    """Return where names of weights are found, after those that resemble `name`."""
    close = get_close_matches(name, [*published_files(), *DEMOS], n=3)
    meant = f'did you mean one of {close}? ' if close else ''
    return f'{meant}`mmattn weights list` lists the names'


def demo_weights(name: str) -> Path:
    """Return the file of a demo's weights, which is below the current folder.

    Args:
        name: one of `DEMOS`.

    Raises:
        FileNotFoundError: the demo has not run here.
    """
    command, file = DEMOS[name]
    if not Path(file).is_file():
        raise FileNotFoundError(
            f'{SCHEME}{name} is not trained yet: there is no {Path(file).absolute()}. '
            f'Run `{command}` in a clone of mmattn, and stay in its folder'
        )
    return Path(file)


def is_name(name: str) -> bool:
    """Return whether weights have this name, without `mmattn://`."""
    return name in DEMOS or name in published_files()


def config_of(entry: dict) -> str | None:
    """Return the config of the whole network in a file; None uses its backbone."""
    return entry.get('config', entry.get('figures'))
