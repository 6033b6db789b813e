"""Evaluate a checkpoint with the test set and metrics of its config.

    python tools/test.py CONFIG CHECKPOINT

The options and the code are in `mmattn/cli/test.py`.
"""

import sys

from mmattn.cli.terminal import run_main
from mmattn.cli.test import main


def with_weights(argv: list[str]) -> list[str]:
    """Return the arguments of `mmattn test` for a config and a checkpoint after it."""
    if len(argv) > 1 and not argv[1].startswith('-'):
        return [argv[0], '--weights', *argv[1:]]
    return argv


if __name__ == '__main__':
    run_main(lambda: main(with_weights(sys.argv[1:])))
