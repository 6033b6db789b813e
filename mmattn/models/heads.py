"""PooledMLP: what stands between CAFormer's last map and its linear classifier.

The classifier of Yu et al., "MetaFormer Baselines for Vision",
https://arxiv.org/abs/2210.13452, is an MLP on the mean over the pixels; counting it
reproduces the parameters of iViT's paper. The last linear layer is mmpretrain's
`LinearClsHead`, which brings loss and prediction; this module is the part before it, in
mmpretrain's terms a neck, and needs nothing of mmpretrain itself.
"""

from torch import Tensor, nn

from mmattn.models.layers import init_linear_and_conv
from mmattn.registry import MODELS


@MODELS.register_module()
class PooledMLP(nn.Module):
    """Mean over the pixels, norm, linear layer, squared ReLU, norm.

    Args:
        in_channels: channels C of the map.
        mlp_ratio: width of the output as a multiple of C.

    Forward:
        Takes maps (B, C, H, W), as a backbone returns them, and returns the features
        (B, mlp_ratio * C) of the last one, in a tuple.
    """

    def __init__(self, in_channels: int, *, mlp_ratio: int = 4):
        super().__init__()
        self.norm1 = nn.LayerNorm(in_channels, eps=1e-6)
        self.fc = nn.Linear(in_channels, mlp_ratio * in_channels)
        self.norm2 = nn.LayerNorm(mlp_ratio * in_channels)
        self.apply(init_linear_and_conv)

    def forward(self, feats: tuple[Tensor, ...]) -> tuple[Tensor]:
        x = feats[-1].mean(dim=(2, 3))  # (B, C)
        x = self.fc(self.norm1(x)).relu().square()  # (B, mlp_ratio * C)
        return (self.norm2(x),)
