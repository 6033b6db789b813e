"""Turn your own annotated images into a data set with a config to train on it.

The options and the code are in `mmattn/data/convert.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.convert import main

if __name__ == '__main__':
    run_main(main)
