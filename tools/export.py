"""Write the model of a config as an ONNX file or a torch.export program.

The options and the code are in `mmattn/cli/export.py`.
"""

from mmattn.cli.export import main
from mmattn.cli.terminal import run_main

if __name__ == '__main__':
    run_main(main)
