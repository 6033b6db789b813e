"""Evaluate a checkpoint with the test set and metrics of its config.

The options and the code are in `mmattn/commands/test.py`.
"""

from mmattn.commands.test import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
