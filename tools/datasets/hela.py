"""HeLa nuclei as a COCO instance segmentation data set, `data/hela`.

The options and the code are in `mmattn/datasets/hela.py`.
"""

from mmattn.datasets.hela import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
