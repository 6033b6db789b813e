"""Run another package's script, such as mmdet's train.py, after `import mmattn`.

mmattn run SCRIPT [ARGUMENTS]
"""

import runpy
import sys
from pathlib import Path

from ..errors import UserError


def main(argv: list[str] | None = None):
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in ('-h', '--help'):
        print(__doc__.strip())
        return
    script, *arguments = argv or [None]
    if script is None or not Path(script).is_file():
        raise UserError(f'`mmattn run` takes a Python script, got {script!r}')
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name='__main__')
