"""The parts of a GPU's report, in the order in which they run.

A part is a module with

- `TITLE`, a heading;
- `SHARE`, its weight when the time is divided among the parts;
- `tasks(settings)`, names of what runs in processes of its own;
- `run(task, settings, log)`, which measures one task.

It may have `PARALLEL = True` if tasks may run side by side, and `CRITICAL = True` if a
failure makes the report fail.
"""

from importlib import import_module
from types import ModuleType

from .log import Log, Settings, read

PARTS = (
    'device',
    'correctness',
    'races',
    'rates',
    'speed',
    'tiles',
    'models',
    'detector',
)


def load(part: str) -> ModuleType:
    """Load one of `PARTS`."""
    return import_module(f'.{part}', __name__)


__all__ = ['PARTS', 'Log', 'Settings', 'load', 'read']
