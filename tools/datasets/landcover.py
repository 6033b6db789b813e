"""Land cover of the Earth as a semantic segmentation data set, `data/landcover`.

The options and the code are in `mmattn/data/landcover.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.landcover import main

if __name__ == '__main__':
    run_main(main)
