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
COLUMNS = {
    'variant': str,
    'seed': int,
    'config_hash': str,
    'commit': str,
    'machine': str,
    'torch': str,
    'date': str,
    'parameters': int,
    'flops': int,
    'iterations': int,
    'seconds_per_iteration': float,
}
CURVE_COLUMNS = {'variant': str, 'seed': int, 'config_hash': str}
CURVE_COLUMNS |= {'iteration': int, 'loss': float}


class DamagedTable(UserError):
    """A csv file of runs that cannot be read."""


@dataclass(frozen=True)
class Run:
    """Describe a finished run: its facts, by the names of `COLUMNS`, and its metrics.

    A metric that was not measured is absent.
    """

    facts: Mapping[str, str | int | float]
    metrics: Mapping[str, float]

    @property
    def key(self) -> tuple[str, int, str]:
        """Return variant, seed and hash of the config, which a run has alone."""
        return self.facts['variant'], self.facts['seed'], self.facts['config_hash']


def read_runs(path: Path) -> list[Run]:
    """Return the runs in the order of the file; none if there is no file.

    Raises:
        DamagedTable: a column is missing, a value is of another type, or a run is there
            twice. The message names file and line.
    """
    runs = {}
    for line, row in _rows(path, COLUMNS):
        facts = {name: row.pop(name) for name in COLUMNS}
        metrics = {}
        for name, text in row.items():
            if text:
                metrics[name] = _parsed(path, line, name, text, float)
        run = Run(facts, metrics)
        if run.key in runs:
            raise DamagedTable(
                f'{path}, line {line}: variant {run.key[0]!r}, seed {run.key[1]} and '
                f'config {run.key[2]} are there twice; remove one of the rows'
            )
        runs[run.key] = run
    return list(runs.values())


def read_curves(path: Path) -> list[dict]:
    """Return variant, seed, config, iteration and training loss of each point."""
    return [row for _, row in _rows(path, CURVE_COLUMNS)]


def add_run(path: Path, run: Run) -> None:
    """Add a run to the file, or replace it there, with the whole file or not at all."""
    with locked(path):
        runs = {each.key: each for each in read_runs(path)} | {run.key: run}
        metrics = dict.fromkeys(name for each in runs.values() for name in each.metrics)
        rows = [dict(each.facts) | dict(each.metrics) for each in runs.values()]
        _write(path, [*COLUMNS, *metrics], rows)


def add_curve(path: Path, run: Run, points: list[tuple[int, float]]) -> None:
    """Add the training loss of a run, (iteration, loss), or replace it."""
    names = list(CURVE_COLUMNS)[:3]
    with locked(path):
        rows = [
            row
            for row in read_curves(path)
            if tuple(row[name] for name in names) != run.key
        ]
        about = dict(zip(names, run.key, strict=True))
        rows += [about | dict(iteration=i, loss=f'{loss:.4g}') for i, loss in points]
        _write(path, list(CURVE_COLUMNS), rows)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file's folder while the file is read and written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, columns: list[str], rows: list[dict]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    partial = path.with_name(f'.{path.name}.partial')
    partial.write_text(text.getvalue())
    os.replace(partial, path)


def _rows(path: Path, types: Mapping[str, type]) -> Iterator[tuple[int, dict]]:
    if not path.is_file():
        return
    with path.open(newline='') as file:
        reader = csv.DictReader(file)
        missing = sorted(set(types) - set(reader.fieldnames or ()))
        if missing:
            raise DamagedTable(f'{path}, line 1: the columns {missing} are missing')
        for row in reader:
            line = reader.line_num
            if None in row or None in row.values():
                raise DamagedTable(
                    f'{path}, line {line}: not as many values as columns; remove the '
                    'row, and its run is repeated'
                )
            for name, kind in types.items():
                row[name] = _parsed(path, line, name, row[name], kind)
            yield line, row


def _parsed(path: Path, line: int, name: str, text: str, kind: type):
    try:
        return kind(text)
    except ValueError:
        raise DamagedTable(
            f'{path}, line {line}: {name} must be {kind.__name__}, got {text!r}; '
            'remove the row, and its run is repeated'
        ) from None
