"""Download COCO, ADE20K or ImageNet and lay it out as our configs expect it.

The options and the code are in `mmattn/data/prepare.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.prepare import main

if __name__ == '__main__':
    run_main(main)
