"""Turn a published checkpoint into one that `init_cfg` of our backbone loads.

The options and the code are in `mmattn/converters/convert_checkpoint.py`.
"""

from mmattn.converters.convert_checkpoint import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
