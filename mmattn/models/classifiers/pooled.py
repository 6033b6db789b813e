"""PooledClassifier: a backbone, the mean of its last map, and a linear layer.

It requires only torch. The classifiers of the papers, some with class tokens or MLPs,
are in `configs/classification`; `mmattn.integrations.timm` has this one with timm's
interface.
"""

from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.models.layers import init_linear_and_conv


class PooledClassifier(nn.Module):
    """Image classifier on any backbone of ours, in plain PyTorch.

    Args:
        backbone: returns one map, its last.
        num_classes: 0 leaves out the linear layer.
        global_pool: 'avg', or '' to classify each pixel of the last map.
        drop_rate: dropout before the linear layer.

    Forward:
        Takes images (B, C, H, W) and returns scores (B, num_classes), or
        (B, num_classes, h, w) without pooling.

    Raises:
        ValueError: the backbone returns other than its last map, or `global_pool` is
            unknown.
    """

    def __init__(
        self,
        backbone: BaseBackbone,
        num_classes: int = 1000,
        *,
        global_pool: str = 'avg',
        drop_rate: float = 0.0,
    ):
        super().__init__()
        last = len(backbone.level_channels) - 1
        if backbone.out_indices != (last,) or backbone.out_type != 'featmap':
            raise UserError(
                f'PooledClassifier: {type(backbone).__name__} must return its last map '
                f"alone: out_indices=-1, out_type='featmap'; got "
                f'{backbone.out_indices} and {backbone.out_type!r}'
            )
        self.backbone = backbone
        self.num_features = backbone.out_channels[0]
        stage_norm = getattr(backbone.levels[-1], 'norm', nn.Identity())
        self.fc_norm = nn.Identity()
        if not backbone.out_norms and isinstance(stage_norm, nn.Identity):
            self.fc_norm = nn.LayerNorm(self.num_features, eps=1e-6)
        self.head_drop = nn.Dropout(drop_rate)
        self.set_head(num_classes, global_pool)

    def set_head(self, num_classes: int, global_pool: str):
        """Put in a new linear layer, and set the pooling."""
        if global_pool not in ('avg', ''):
            raise UserError(
                "PooledClassifier: global_pool must be 'avg' or '', got "
                f'{global_pool!r}'
            )
        self.global_pool, self.num_classes = global_pool, num_classes
        self.head = nn.Identity()
        if num_classes > 0:
            self.head = nn.Linear(self.num_features, num_classes)
            init_linear_and_conv(self.head)
        self.head.to(next(self.backbone.parameters())).train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.head(self.pool(self.backbone(x)[0]))
        return scores if self.global_pool else scores.permute(0, 3, 1, 2)

    def pool(self, x: Tensor) -> Tensor:
        """Return what the linear layer takes: (B, C), or (B, h, w, C) of each pixel."""
        x = x.mean((-2, -1)) if self.global_pool else x.permute(0, 2, 3, 1)
        return self.head_drop(self.fc_norm(x))
