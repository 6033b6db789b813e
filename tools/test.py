"""Evaluate a checkpoint with the test set and metrics of its config.

The options and the code are in `mmattn/cli/test.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.cli.test import main

if __name__ == '__main__':
    run_main(main)
