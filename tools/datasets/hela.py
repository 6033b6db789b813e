"""HeLa nuclei as a COCO instance segmentation data set, `data/hela`.

The options and the code are in `mmattn/data/hela.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.hela import main

if __name__ == '__main__':
    run_main(main)
