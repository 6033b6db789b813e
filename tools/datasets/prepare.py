"""Download COCO, ADE20K or ImageNet and lay it out as our configs expect it.

The options and the code are in `mmattn/datasets/prepare.py`.
"""

from mmattn.datasets.prepare import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
