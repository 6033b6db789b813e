"""Start a tutorial: go to the root of the checkout, and run shell commands there.

A tutorial's first cell is `%run ../_ext/tutorial.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

from IPython.core.magic import register_cell_magic

ROOT = Path(__file__).resolve().parents[2]
# Lines that mmengine and pycocotools print in each program.
NOISE = (
    'Done (t=',
    'Loads checkpoint by',
    'creating index',
    'index created',
    'loading annotations',
)

os.chdir(ROOT)
sys.path.insert(0, str(ROOT))
PATHS = [str(Path(sys.executable).parent), os.environ['PATH']]
os.environ |= {'PYTHONPATH': str(ROOT), 'PATH': os.pathsep.join(PATHS), 'NO_COLOR': '1'}
for name in ('FORCE_COLOR', 'CLICOLOR_FORCE'):  # which Jupyter sets
    os.environ.pop(name, None)


@register_cell_magic
def bash(line: str, cell: str):
    """Run commands in bash, and print their output when they have ended.

    Raises:
        RuntimeError: a command failed; the message ends with its errors.
    """
    command = ['bash', '-e', '-o', 'pipefail', '-c', cell]
    done = subprocess.run(command, capture_output=True, text=True)
    before = ''
    for line in done.stdout.splitlines():
        is_noise = line.startswith(NOISE) or (not line and before.startswith(NOISE))
        if not is_noise:
            print(line)
        before = line
    if done.returncode:
        raise RuntimeError(f'exit status {done.returncode}\n{done.stderr[-3000:]}')
