"""Land cover of the Earth as a classification data set, `data/landcover_patches`.

The options and the code are in `mmattn/datasets/landcover_patches.py`.
"""

from mmattn.datasets.landcover_patches import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
