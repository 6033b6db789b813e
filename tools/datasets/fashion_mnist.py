"""Fashion-MNIST as mmpretrain's `FashionMNIST` reads it, `data/fashion_mnist`.

The options and the code are in `mmattn/datasets/fashion_mnist.py`.
"""

from mmattn.datasets.fashion_mnist import main
from mmattn.terminal import run_main

if __name__ == '__main__':
    run_main(main)
