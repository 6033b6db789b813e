"""Fashion-MNIST as mmpretrain's `FashionMNIST` reads it, `data/fashion_mnist`.

70,000 gray images of 28x28 pixels in 10 classes, from a package of Debian: 60,000 for
training and 10,000 for testing. Our runs train on the first 55,000 of the former and
leave the last 5,000 for the choice of settings.

`--baseline` fits a linear classifier to the pixels of those 55,000 by least squares and
tests it: what a network has to beat.

Cite: Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking
Machine Learning Algorithms", https://arxiv.org/abs/1708.07747
"""

import gzip
from pathlib import Path

import numpy as np

from mmattn.cli.terminal import run_main

from .package_data import Package, main_of, read_deb

PACKAGE = Package(
    name='dataset-fashion-mnist',
    version='0.0~git20200523.55506a9-1',
    filename='dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb',
    sha256='39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0',
    license='MIT',
    md5='28c148d3a02fef8285239e22d1f420b1',
)
RESOURCES = 'usr/share/datasets/fashion-mnist'
FILES = {
    'train': ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte'),
    'test': ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte'),
}
NUM_CLASSES, TRAINED = 10, 55000


def read_idx(path: Path) -> np.ndarray:
    """Return the array of bytes of an idx file."""
    data = path.read_bytes()
    head = np.frombuffer(data[: 4 * (1 + data[3])], dtype='>i4')
    return np.frombuffer(data, dtype=np.uint8, offset=head.nbytes).reshape(head[1:])


def convert(packages: list[Path], folder: Path) -> dict:
    """Write the four files and return the number of images of each split."""
    names = [name for pair in FILES.values() for name in pair]
    contents = read_deb(packages[0], [f'{RESOURCES}/{name}.gz' for name in names])
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(gzip.decompress(content))
    return {split: len(load_split(folder, split)[1]) for split in FILES}


def load_split(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (P, H, W) and labels (P,), both uint8."""
    images, labels = (read_idx(folder / name) for name in FILES[split])
    return images, labels


def baseline(folder: Path) -> dict[str, float]:
    """Fit a linear classifier by least squares and return its accuracy in percent."""

    def features(images: np.ndarray) -> np.ndarray:
        pixels = images.reshape(len(images), -1) / 255
        return np.concatenate([pixels, np.ones((len(images), 1))], axis=1)

    images, labels = (part[:TRAINED] for part in load_split(folder, 'train'))
    x, y = features(images), np.eye(NUM_CLASSES)[labels]
    penalty = 1e-3 * len(x) * np.eye(x.shape[1])
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ y)
    images, labels = load_split(folder, 'test')
    accuracy = np.mean((features(images) @ weights).argmax(1) == labels)
    return {'accuracy/top1': 100 * float(accuracy)}


main = main_of(__doc__, 'fashion_mnist', (PACKAGE,), convert, baseline)


if __name__ == '__main__':
    run_main(main)
