"""Depthwise convolution of a channels-last grid."""

from torch import Tensor, nn


class DepthwiseConv(nn.Conv2d):
    """Depthwise convolution with zero padding; shape (B, H, W, C) in and out."""

    def __init__(self, embed_dims: int, kernel_size: int, *, bias: bool = True):
        super().__init__(
            embed_dims,
            embed_dims,
            kernel_size,
            padding=kernel_size // 2,
            groups=embed_dims,
            bias=bias,
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
