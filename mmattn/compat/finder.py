"""Correct modules of other packages right after they are imported.

`import mmattn` puts one finder at the front of `sys.meta_path`. It corrects the modules
of a table, and leaves every other one alone. It asks the finders behind it, so that a
module comes from where it would come without us: a compiled `mmcv._ext` is never
replaced. Nothing is imported before a program asks for it.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import NamedTuple


class Correction(NamedTuple):
    """A module of another package, and what becomes different in it.

    Args:
        module: name of the module.
        by: `module:function` of ours. The function gets the module after its execution
            and returns False if it changes nothing.
        what: what is different, in a few words.
        why: what fails or is unsafe otherwise.
        until: when the row can go, with the issue where there is one.
        missing: fill the module in where nobody else has it.
    """

    module: str
    by: str
    what: str
    why: str
    until: str
    missing: bool = False


class CorrectingLoader:
    """Run the loader that was found, then the correction. Without one, fill a module.

    The module keeps the loader that was found: `inspect.getsource` and
    `importlib.reload` see nothing of us.
    """

    def __init__(self, loader, correct):
        self.loader, self.correct = loader, correct

    def create_module(self, spec):
        return self.loader and self.loader.create_module(spec)

    def exec_module(self, module):
        if self.loader:
            module.__spec__.loader = module.__loader__ = self.loader
            self.loader.exec_module(module)
        self.correct(module)


class CorrectingFinder:
    """Find the modules of a table; `in_force` has the rows that changed something."""

    def __init__(self, table: Sequence[Correction]):
        self.rows = {row.module: row for row in table}
        self.in_force = []

    def install(self):
        """Add the finder, and correct the modules that are imported already."""
        if self in sys.meta_path:
            return
        sys.meta_path.insert(0, self)
        for name in self.rows.keys() & sys.modules.keys():
            if not self.rows[name].missing:
                self.correct(sys.modules[name])

    def find_spec(self, fullname, path=None, target=None):
        row = self.rows.get(fullname)
        if row is None or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if not row.missing:
                    spec.loader = CorrectingLoader(spec.loader, self.correct)
                return spec
        if row.missing:
            loader = CorrectingLoader(None, self.correct)
            return ModuleSpec(fullname, loader, origin=row.by.partition(':')[0])
        return None

    def correct(self, module):
        row = self.rows[module.__name__]
        ours, _, function = row.by.partition(':')
        changed = getattr(importlib.import_module(ours), function)(module)
        if changed is not False and row not in self.in_force:
            self.in_force.append(row)
