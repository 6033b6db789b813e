"""Train the model of a config of mmdet, mmsegmentation or mmpretrain.

The options and the code are in `mmattn/commands/train.py`.
"""

from mmattn.commands.train import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
