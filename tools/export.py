"""Write the model of a config as an ONNX file or a torch.export program.

The options and the code are in `mmattn/commands/export.py`.
"""

from mmattn.commands.export import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
