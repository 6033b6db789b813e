"""Land cover of the Earth as a classification data set, `data/landcover_patches`.

The options and the code are in `mmattn/data/landcover_patches.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.landcover_patches import main

if __name__ == '__main__':
    run_main(main)
