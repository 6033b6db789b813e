# ResNet-18 with a quarter of its channels and the stem for small images.
_base_ = './vit_n_fashion_mnist.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='ResNet_CIFAR',
        depth=18,
        in_channels=1,
        stem_channels=16,
        base_channels=16,
    ),
    head=dict(in_channels=128),
)
