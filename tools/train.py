"""Train the model of a config of mmdet, mmsegmentation or mmpretrain.

The options and the code are in `mmattn/cli/train.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.cli.train import main

if __name__ == '__main__':
    run_main(main)
