"""Tiny synthetic stand-ins for COCO 2017, ADE20K and ImageNet, in their exact layouts.

The options and the code are in `mmattn/datasets/toy.py`.
"""

from mmattn.datasets.toy import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
