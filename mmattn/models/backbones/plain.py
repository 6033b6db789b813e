"""Blocks on one grid of patches: what the plain networks share."""

from torch import nn

from .base_backbone import BaseBackbone


class Plain(BaseBackbone):
    """Backbone with a list `blocks`, a `pos_embed` (1, N, C) and a `patch_size`."""

    blocks: nn.ModuleList
    pos_embed: nn.Parameter
    patch_size: int

    def levels(self):
        return [(self.pos_embed.shape[-1], self.patch_size)] * len(self.blocks)

    def level_lists(self):
        return [self.blocks]
