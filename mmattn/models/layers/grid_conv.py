"""Convolution of a channels-last grid."""

from torch import Tensor, nn

from .depthwise_conv import conv2d


class GridConv(nn.Conv2d):
    """`nn.Conv2d` with square kernels and zero padding; (B, H, W, C) in and out."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = True,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, bias=bias
        )

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.stride[0], self.padding[0])
