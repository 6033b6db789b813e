"""ViT with any of the mixers of this folder, by a config."""

from collections.abc import Mapping

from mmengine.registry import MODELS

from mmattn.models import ViT
from mmattn.models.layers import init_linear_and_conv

from . import (  # noqa: F401  registers the mixers
    combiner,
    eva,
    lara,
    local,
    long_short,
    nystromformer,
    performer,
    scatterbrain,
)


@MODELS.register_module()
class ZooViT(ViT):
    """mmattn's `ViT` whose attention is built from a config.

    Args:
        arch: as in `ViT`.
        mixer: config of a registered layer with maps (B, H, W, C) in and out, for
            example `dict(type='PerformerAttention', num_features=64)`. It gets
            `embed_dims` and `num_heads` of the network.
        **vit: other arguments of `ViT`, except `attention` and its settings.
    """

    def __init__(self, arch: str | Mapping, mixer: Mapping, **vit):
        super().__init__(arch, attention='mhsa', **vit)
        arch = self.resolve_arch(arch)
        for block in self.blocks:
            block.attn = MODELS.build(
                dict(
                    mixer,
                    embed_dims=arch['embed_dims'],
                    num_heads=arch['num_heads'],
                )
            )
            block.attn.apply(init_linear_and_conv)
        self.freeze()
