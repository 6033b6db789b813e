"""Print the parameters and FLOPs of the model in a config, module by module.

The options and the code are in `mmattn/cli/flops.py`.
"""

from mmattn.cli.flops import main
from mmattn.cli.terminal import run_main

if __name__ == '__main__':
    run_main(main)
