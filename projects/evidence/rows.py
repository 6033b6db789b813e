"""Finished runs as rows of a csv file, which several processes may extend at once."""

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mmattn.errors import UserError

# The other columns are metrics.
COLUMNS = dict(network=str, seed=int, hash=str, parameters=int, flops=int, images=int)
COLUMNS |= dict(commit=str, torch=str, machine=str, date=str)


class DamagedTable(UserError):
    """A csv file of runs that cannot be read."""


@dataclass(frozen=True)
class Row:
    """Describe a finished run: its facts, by the names of `COLUMNS`, and its metrics.

    A metric that was not measured is absent. A run has the hash of what defines it
    beside its seed. The network's name is for readers.
    """

    facts: Mapping[str, str | int]
    metrics: Mapping[str, float]

    @property
    def key(self) -> tuple[str, int]:
        """Return hash and seed, which a run has alone."""
        return self.facts['hash'], self.facts['seed']


def read_rows(path: Path) -> dict[tuple[str, int], Row]:
    """Return the runs by hash and seed, in the order of the file; none without a file.

    Raises:
        DamagedTable: a column is missing, a value is of another type, or a run is there
            twice. The message names file and line.
    """
    rows = {}
    if not path.is_file():
        return rows
    with path.open(newline='') as file:
        reader = csv.DictReader(file)
        for values in reader:
            try:
                facts = {name: kind(values.pop(name)) for name, kind in COLUMNS.items()}
                metrics = {name: float(text) for name, text in values.items() if text}
                row = Row(facts, metrics)
                if row.key in rows:
                    raise ValueError(f'run {row.key} is there twice')
            except (KeyError, ValueError, TypeError) as error:
                raise DamagedTable(
                    f'{path}, line {reader.line_num}: {error!r}; remove the row, and '
                    'its run is repeated'
                ) from None
            rows[row.key] = row
    return rows


def add_row(path: Path, row: Row) -> None:
    """Add a run to the file, or replace it there, with the whole file or not at all."""
    with locked(path.parent):
        rows = (read_rows(path) | {row.key: row}).values()
        metrics = dict.fromkeys(name for each in rows for name in each.metrics)
        text = io.StringIO()
        writer = csv.DictWriter(text, [*COLUMNS, *metrics], lineterminator='\n')
        writer.writeheader()
        writer.writerows(dict(each.facts) | dict(each.metrics) for each in rows)
        partial = path.with_name(f'.{path.name}.partial')
        partial.write_text(text.getvalue())
        os.replace(partial, path)


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a folder, which is made; yield whether it is ours.

    Args:
        folder: what is locked.
        wait: whether to wait for another process that has the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(file)
