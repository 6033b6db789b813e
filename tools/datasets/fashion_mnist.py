"""Fashion-MNIST as mmpretrain's `FashionMNIST` reads it, `data/fashion_mnist`.

The options and the code are in `mmattn/data/fashion_mnist.py`.
"""

from mmattn.cli.terminal import run_main
from mmattn.data.fashion_mnist import main

if __name__ == '__main__':
    run_main(main)
