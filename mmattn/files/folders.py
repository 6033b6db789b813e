"""Write folders whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stage(target: Path) -> Iterator[Path]:
    """Yield a folder to write into that becomes `target` when the block succeeds.

    The folder is a hidden sibling of `target`, so the final rename is atomic. When the
    block raises, KeyboardInterrupt included, the folder is removed and `target` is as
    it was.
    """
    target = target.resolve()
    partial = target.with_name(f'.{target.name}.{os.getpid()}.partial')
    replaced = partial.with_suffix('.replaced')
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
    except BaseException:
        if replaced.exists():
            replaced.rename(target)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
