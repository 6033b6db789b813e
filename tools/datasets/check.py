"""Check the data sets and channels of a config as training does, and print a table.

The options and the code are in `mmattn/datasets/check.py`.
"""

from mmattn.datasets.check import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
