"""Separable convolution that mixes pixels in the first stages of hybrid networks."""

from torch import Tensor, nn

from .depthwise_conv import DepthwiseConv
from .pointwise import PointwiseLinear, StarReLU
from .resize import crop_on_load
from .strips import convolve_by_strips


class SeparableConv(nn.Module):
    """Inverted separable convolution C -> 2C -> C; shape (B, H, W, C) in and out.

    It is CAFormer's (Yu et al., "MetaFormer Baselines for Vision",
    https://arxiv.org/abs/2210.13452), without biases. A larger kernel that is
    loaded is cut to its middle.
    """

    def __init__(
        self,
        embed_dims: int,
        kernel_size: int,
        act_layer: type[nn.Module] = StarReLU,
    ):
        super().__init__()
        hidden_dims = 2 * embed_dims
        self.pwconv1 = PointwiseLinear(embed_dims, hidden_dims, bias=False)
        self.act = act_layer()
        self.dwconv = DepthwiseConv(hidden_dims, kernel_size, bias=False)
        self.pwconv2 = PointwiseLinear(hidden_dims, embed_dims, bias=False)
        crop_on_load(self.dwconv, 'weight')

    def forward(self, x: Tensor) -> Tensor:
        return convolve_by_strips(
            lambda x: self.act(self.pwconv1(x)), self.dwconv, self.pwconv2, x
        )
