"""Report versions, mm packages, the backend of each operator, and problems.

The options and the code are in `mmattn/commands/env.py`.
"""

from mmattn.commands.env import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
