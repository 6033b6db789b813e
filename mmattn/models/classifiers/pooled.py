"""PooledClassifier: a backbone, the mean of its last map, and a linear layer.

It has the methods and attributes of timm's models
(https://github.com/huggingface/pytorch-image-models) and requires only torch. The
classifiers of the papers, some with class tokens or MLPs, are in
`configs/classification`.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.models.backbones.calls import take_indices
from mmattn.models.layers import init_linear_and_conv

PREFIX = 'backbone.'


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

    output_fmt = 'NCHW'

    def __init__(
        self,
        backbone: BaseBackbone,
        num_classes: int = 1000,
        *,
        global_pool: str = 'avg',
        drop_rate: float = 0.0,
    ):
        super().__init__()
        last = len(backbone.levels()) - 1
        if backbone.out_indices != (last,) or backbone.out_type != 'featmap':
            raise UserError(
                f'PooledClassifier: {type(backbone).__name__} must return its last map '
                f"alone: out_indices=-1, out_type='featmap'; got "
                f'{backbone.out_indices} and {backbone.out_type!r}'
            )
        self.backbone = backbone
        self.in_chans = backbone.in_channels
        self.feature_info = [
            record | dict(module=PREFIX + record['module'])
            for record in backbone.describe_levels()
        ]
        self.num_features = self.head_hidden_size = backbone.out_channels[0]
        self.fc_norm = nn.LayerNorm(self.num_features, eps=1e-6)
        if backbone.ends_in_norm():
            self.fc_norm = nn.Identity()
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Identity()
        self.reset_classifier(num_classes, global_pool)

    def get_classifier(self) -> nn.Module:
        """Return the linear layer, or an identity if there are no classes."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None):
        """Put in a new linear layer, and another pooling unless that is None."""
        if global_pool not in (None, 'avg', ''):
            raise UserError(
                "PooledClassifier: global_pool must be 'avg' or '', got "
                f'{global_pool!r}'
            )
        if global_pool is not None:
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head = nn.Identity()
        if num_classes > 0:
            like = next(self.parameters())
            self.head = nn.Linear(
                self.num_features, num_classes, device=like.device, dtype=like.dtype
            )
            init_linear_and_conv(self.head)
        self.head.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last map (B, C, h, w)."""
        return self.backbone(x)[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return scores of the last map, or with `pre_logits` what they come from."""
        x = x.mean((-2, -1)) if self.global_pool else x.permute(0, 2, 3, 1)
        x = self.head_drop(self.fc_norm(x))
        x = x if pre_logits else self.head(x)
        return x if self.global_pool else x.permute(0, 3, 1, 2)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return maps of any levels, see `BaseBackbone.forward_intermediates`."""
        return self.backbone.forward_intermediates(
            x, indices, norm, stop_early, output_fmt, intermediates_only
        )

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove what the maps of `indices` do not need, and return the indices."""
        taken = take_indices(indices, len(self.feature_info))
        last = max(taken)
        cut = last < len(self.feature_info) - 1
        self.backbone.prune(last, keep_norms=not prune_norm)
        if cut:
            self.num_features = self.feature_info[last]['num_chs']
            self.head_hidden_size = self.num_features
        if prune_head or cut:
            self.fc_norm = nn.Identity()
            self.reset_classifier(0, '')
        return taken

    def set_grad_checkpointing(self, enable: bool = True):
        """Recompute each block's activations in the backward."""
        self.backbone.set_grad_checkpointing(enable)

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without decay, for timm's optimizers."""
        return {PREFIX + name for name in self.backbone.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> Callable[[str], int]:
        """Return timm's function from a parameter's name to its layer.

        Args:
            coarse: group the stages instead of their blocks.
        """

        def layer_of(name: str) -> int:
            return self.backbone.get_layer_depth(name, PREFIX, coarse)[0]

        return layer_of
