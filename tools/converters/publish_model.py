"""Write the weights of a trained model as a small file to share.

The options and the code are in `mmattn/converters/publish_model.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.converters.publish_model import main

if __name__ == '__main__':
    run_main(main)
