"""Turn a published checkpoint into one that `init_cfg` of our backbone loads.

The options and the code are in `mmattn/converters/convert_checkpoint.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.converters.convert_checkpoint import main

if __name__ == '__main__':
    run_main(main)
