"""Write the folder of a data set whole or not at all."""

import json
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError
from ..files.folders import stage

CARD = 'dataset.json'


def build(
    write: Callable[[Path], dict], out: Path, options: dict, force: bool = False
) -> None:
    """Write the data set folder `out`, or print that it is already complete.

    A folder that this function did not write is never replaced, not even by `force`.

    Args:
        write: writes the data set into a folder and returns its counts.
        out: the folder; its `dataset.json` records counts and options.
        options: what the content depends on.
        force: rebuild a complete data set.

    Raises:
        ValueError: `out` holds something else.
    """
    card_path = out / CARD
    if card_path.is_file():
        card = json.loads(card_path.read_text())
        same = card.get('options') == options
        if same and not force:
            print(f'{out} is complete: {card["counts"]} (--force rebuilds it)')
            return
        if not same and not force:
            raise UserError(
                f'{out} was made with other options than asked for, '
                f'{card.get("options")} instead of {options}; --force rebuilds it'
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f'{out} exists and was not written by this tool')
    with stage(out) as folder:
        counts = write(folder)
        content = json.dumps(dict(counts=counts, options=options), indent=2)
        (folder / CARD).write_text(content + '\n')
    print(f'wrote {out}: {counts}')
