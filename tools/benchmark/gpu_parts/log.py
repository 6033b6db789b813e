"""Write what a task does: one line of JSON for each thing that happens, at once."""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

POISONED = 86  # exit status after an error that breaks the CUDA context


@dataclass(frozen=True)
class Settings:
    """Hold what all parts are run with.

    Args:
        out: folder of the report.
        dry_run: whether to run small shapes under Triton's interpreter.
    """

    out: Path
    dry_run: bool = False

    @property
    def device(self) -> str:
        return 'cpu' if self.dry_run else 'cuda'

    @property
    def lines(self) -> Path:
        """Return the folder of what tasks write."""
        return self.out / 'lines'

    def rows(self, table: str) -> list[dict]:
        """Return the rows of a table that are written so far."""
        lines = [line for path in self.lines.glob('*.jsonl') for line in read(path)]
        return [
            line['row']
            for line in lines
            if line['kind'] == 'row' and line['table'] == table
        ]


def read(path: Path) -> list[dict]:
    """Return the lines of a task; the last may be cut off."""
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


class Log:
    """Write the lines of one task, and run its cases one after the other.

    Args:
        path: file to append to.
        until: time after which no further case is begun.
        skip: number of cases that an earlier process of the task has begun.
    """

    def __init__(self, path: Path, until: float, skip: int = 0):
        self.path, self.until, self.skip = path, until, skip
        self.index = 0

    @property
    def seconds_left(self) -> float:
        return self.until - time.time()

    def write(self, kind: str, **values):
        with self.path.open('a') as file:
            file.write(json.dumps({'kind': kind} | values) + '\n')

    def row(self, table: str, **columns):
        """Add a row to a table of the report."""
        self.write('row', table=table, row=columns)

    def attempt(self, case: str, work: Callable[[], Iterable[tuple[str, dict]] | None]):
        """Run a case, and write its rows or its traceback.

        Args:
            case: name of the case.
            work: may yield rows, each with the name of its table.
        """
        self.index += 1
        if self.index <= self.skip:
            return
        if self.seconds_left < 0:
            self.write('left out', index=self.index, case=case, why='no time was left')
            return
        self.write('begin', index=self.index, case=case)
        try:
            for table, columns in work() or ():
                self.row(table, **columns)
        except torch.OutOfMemoryError:
            why = 'the device has too little memory'
            self.write('left out', index=self.index, case=case, why=why)
        except Exception as error:  # noqa: BLE001  the report lists any failure
            self._fail(case, error)

    def build(self, case: str, make: Callable[[], Any]) -> Any | None:
        """Return what the next cases share, or None after writing its traceback."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001  the report lists any failure
            self._fail(case, error)

    def _fail(self, case: str, error: Exception):
        self.write(
            'error',
            case=case,
            message=f'{type(error).__name__}: {error}',
            traceback=''.join(traceback.format_exception(error)),
        )
        if torch.cuda.is_initialized() and _is_poisoned():
            os._exit(POISONED)


def _is_poisoned() -> bool:
    """Return whether the CUDA context of this process can no longer be used."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
