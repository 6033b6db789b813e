"""Convolutions for comparison with the networks of the other claims."""

from tools.evidence.claim import Claim, Variant

claim = Claim(
    statement='A small ResNet on the same data, with the same schedule.',
    source='none; mmpretrain has the network',
    image_shape=(1, 28, 28),
    variants={'resnet18': Variant('configs/evidence/resnet18_n_fashion_mnist.py')},
)
