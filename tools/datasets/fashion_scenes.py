"""Scenes of clothes as a semantic segmentation data set, `data/fashion_scenes`.

The options and the code are in `mmattn/datasets/fashion_scenes.py`.
"""

from mmattn.datasets.fashion_scenes import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
