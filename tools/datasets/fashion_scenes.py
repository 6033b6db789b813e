"""Scenes of clothes as a semantic segmentation data set, `data/fashion_scenes`.

The options and the code are in `mmattn/data/fashion_scenes.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.fashion_scenes import main

if __name__ == '__main__':
    run_main(main)
