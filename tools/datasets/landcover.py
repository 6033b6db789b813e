"""Land cover of the Earth as a semantic segmentation data set, `data/landcover`.

The options and the code are in `mmattn/datasets/landcover.py`.
"""

from mmattn.datasets.landcover import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
