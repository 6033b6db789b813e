"""Report versions, mm packages, the backend of each operator, and problems.

The options and the code are in `mmattn/cli/env.py`.
"""

from mmattn.cli.env import main
from mmattn.cli.terminal import run_main

if __name__ == '__main__':
    run_main(main)
