"""PooledMLP: the layers between CAFormer's last map and its linear classifier.

The classifier of Yu et al., "MetaFormer Baselines for Vision",
https://arxiv.org/abs/2210.13452, is an MLP on the mean over the pixels; with it, IViT
has the parameters that its paper prints. The last linear layer is mmpretrain's
`LinearClsHead`, which has loss and prediction. This module is the part before it, a
neck in mmpretrain's terms, and does not require mmpretrain. Dropout comes right before
the last layer, as in the official code (https://github.com/sail-sg/metaformer,
Apache-2.0).
"""

from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.layers import init_linear_and_conv
from mmattn.registry import MODELS


@MODELS.register_module()
class PooledMLP(nn.Module):
    """Neck of mean over the pixels, norm, linear layer, squared ReLU, norm, dropout.

    Args:
        in_channels: channels C of the map.
        mlp_ratio: width of the output as a multiple of C.
        head_dropout: probability with which training sets each output to zero.

    Forward:
        Takes maps (B, C, H, W) of images or (B, C, T, H, W) of clips, as a backbone
        returns them. Returns the features (B, mlp_ratio * C) of the last one, in a
        tuple.

    Raises:
        ValueError: `head_dropout` is not in [0, 1).
    """

    def __init__(
        self, in_channels: int, *, mlp_ratio: int = 4, head_dropout: float = 0.0
    ):
        super().__init__()
        if not 0 <= head_dropout < 1:
            raise UserError(
                f'PooledMLP: head_dropout must be in [0, 1), got {head_dropout}'
            )
        self.norm1 = nn.LayerNorm(in_channels, eps=1e-6)
        self.fc = nn.Linear(in_channels, mlp_ratio * in_channels)
        self.norm2 = nn.LayerNorm(mlp_ratio * in_channels)
        self.dropout = nn.Dropout(head_dropout)
        self.apply(init_linear_and_conv)

    def forward(self, feats: tuple[Tensor, ...]) -> tuple[Tensor]:
        maps = feats[-1]
        x = maps.mean(dim=tuple(range(2, maps.dim())))  # (B, C)
        x = self.fc(self.norm1(x)).relu().square()  # (B, mlp_ratio * C)
        return (self.dropout(self.norm2(x)),)
