"""Tiny synthetic stand-ins for COCO 2017, ADE20K and ImageNet, in their exact layouts.

The options and the code are in `mmattn/data/toy.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.toy import main

if __name__ == '__main__':
    run_main(main)
