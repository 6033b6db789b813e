"""The plain LiSANet with another operator in the place of LiSA."""

from collections.abc import Mapping

from mmengine.registry import MODELS
from torch import nn

from mmattn.errors import UserError, check_choice
from mmattn.models import LiSANet

from .comparators import COMPARATORS, HEAD_DIMS
from .variants import VARIANTS

MIXERS = VARIANTS | COMPARATORS


@MODELS.register_module()
class AblationLiSANet(LiSANet):
    """mmattn's plain `LiSANet` whose attention is one of `MIXERS`.

    Args:
        arch: as in `LiSANet`, of one stage.
        mixer: name of the operator, see `variants.py` and `comparators.py`.
        embed_dims: channels; None takes the arch's.
        num_heads: heads; None gives one to 16 channels.
        local_kernel: side of the kernels of mixer 'local'; 3, 5 or 7 in the paper.
        **lisanet: other arguments of `LiSANet`. Of the attention's, mixers use
            `patterns` alone.

    Raises:
        ValueError: unknown arch or mixer, or settings that do not fit the mixer.
    """

    def __init__(
        self,
        arch: str | Mapping = 'isotropic',
        *,
        mixer: str,
        embed_dims: int | None = None,
        num_heads: int | None = None,
        local_kernel: int = 7,
        **lisanet,
    ):
        check_choice('AblationLiSANet: mixer', mixer, MIXERS)
        arch = self.resolve_arch(arch)
        if len(arch['depths']) > 1:
            raise UserError(
                'AblationLiSANet: arch must have one stage, '
                f'got depths {arch["depths"]}'
            )
        if embed_dims is not None:
            arch = dict(arch, embed_dims=(embed_dims,))
        self.mixer, self.num_heads, self.local_kernel = mixer, num_heads, local_kernel
        super().__init__(arch, **lisanet)

    def make_attention(
        self, channels: int, grid: tuple[int, int], *, patterns: int, **settings
    ) -> nn.Module:
        """Return the mixer of a block."""
        if self.num_heads is None and channels % HEAD_DIMS:
            raise UserError(
                f'AblationLiSANet: embed_dims must be a multiple of {HEAD_DIMS}, or '
                f'num_heads given, got {channels}'
            )
        heads = self.num_heads or channels // HEAD_DIMS
        return MIXERS[self.mixer](channels, heads, grid, patterns, self.local_kernel)
