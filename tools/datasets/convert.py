"""Turn your own annotated images into a data set with a config to train on it.

The options and the code are in `mmattn/datasets/convert.py`.
"""

from mmattn.datasets.convert import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
