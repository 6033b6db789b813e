"""Check the data sets and channels of a config as training does, and print a table.

The options and the code are in `mmattn/data/check.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.check import main

if __name__ == '__main__':
    run_main(main)
