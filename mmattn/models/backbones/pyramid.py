"""Stages on ever coarser maps: what the pyramids among the backbones share.

Each file of a backbone has its own blocks. Channels come last inside the network.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mmattn.models.layers import init_linear_and_conv

from .base_backbone import BaseBackbone, drop_path_rates, run_block


class Stage(nn.Module):
    """The downsampling before a stage's blocks (None for the first) and the blocks."""

    def __init__(self, downsample: nn.Module | None, blocks: Sequence[nn.Module]):
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)


class Pyramid(BaseBackbone):
    """Backbone of several stages, each on a coarser map than the one before.

    A subclass builds `patch_embed` and a list `layers` of `Stage`, or overrides
    `parts`; then `out_norms`, and calls `freeze` last.

    Args:
        arch: name of a preset of `arch_zoo`, or a dict with the keys of a preset.
        out_indices: stages whose maps are returned; None returns all.
        with_cp: recompute each block's activations in the backward.
        compile: whether calls go through `torch.compile`, or a dict of its options.
        init_cfg: mmengine initialization, for example `dict(type='Pretrained', ...)`.
        in_channels: channels of the images, 3 by default. Pretrained weights of RGB
            images are adapted to others on load.

    Other settings of the pyramids:
        drop_path_rate: stochastic depth of the last block, growing linearly from 0.
        out_norm: whether a layer norm ends each returned map.
        frozen_stages: -1 freezes nothing, 0 the stem, n the stem and n stages. Frozen
            parts stay in eval mode.
    """

    def __init__(
        self,
        arch: str | Mapping,
        out_indices: int | Sequence[int] | None,
        with_cp: bool,
        compile: bool | Mapping,
        init_cfg: dict | list[dict] | None,
        in_channels: int = 3,
    ):
        super().__init__(init_cfg, compile, in_channels)
        self.arch = self.resolve_arch(arch)
        count = len(self.arch['depths'])
        if out_indices is None:
            out_indices = range(count)
        self.out_indices = self.resolve_out_indices(out_indices, count)
        self.with_cp = with_cp

    def build_layers(
        self,
        downsample: Callable[[int], nn.Module | None],
        block: Callable[[int, int, float], nn.Module],
        drop_path_rate: float,
    ) -> nn.ModuleList:
        """Build the stages up to the last returned one.

        Those above it would never get a gradient.

        Args:
            downsample: function of the number of a stage.
            block: function of the numbers of stage and block and the rate of its
                stochastic depth.
            drop_path_rate: stochastic depth of the last block.
        """
        depths = self.arch['depths']
        rates = iter(drop_path_rates(drop_path_rate, sum(depths)))
        return nn.ModuleList(
            Stage(
                downsample(stage),
                [block(stage, index, next(rates)) for index in range(depths[stage])],
            )
            for stage in range(self.out_indices[-1] + 1)
        )

    def build_out_norms(
        self, norm_layer: Callable[[int], nn.Module], out_norm: bool
    ) -> nn.ModuleDict:
        """Build the norms of the returned maps; none unless `out_norm`."""
        dims = self.arch['embed_dims']
        indices = self.out_indices if out_norm else ()
        return nn.ModuleDict({str(i): norm_layer(dims[i]) for i in indices})

    def init_parameters(self, stem: nn.Conv2d, *inits: Callable[[nn.Module], None]):
        """Initialize linear layers and convolutions, then apply `inits`.

        The bias of the stem is drawn as well. With a bias of 0, padded pixels would
        reach every norm as zeros. Each norm would multiply their gradient by the
        inverse root of its epsilon, 300 to 1,000.
        """
        for init in (init_linear_and_conv, *inits):
            self.apply(init)
        nn.init.trunc_normal_(stem.bias, std=0.02)

    def parts(self) -> list[tuple[nn.Module, nn.ModuleList]]:
        """Return the stem or downsampling before each stage, and the stage's blocks."""
        before = [layer.downsample for layer in self.layers]
        before[0] = self.patch_embed
        blocks = [layer.blocks for layer in self.layers]
        return list(zip(before, blocks, strict=True))

    def stages(self):
        (stem, first), *rest = self.parts()
        return [[stem], [first], *(list(part) for part in rest)]

    def levels(self):
        count = len(self.parts())
        return [(c, 4 << i) for i, c in enumerate(self.arch['embed_dims'][:count])]

    def level_lists(self):
        return [self.layers]

    def walk(
        self, x: Tensor, indices: Collection[int], take: Callable[[Tensor, int], Any]
    ) -> tuple:
        x = x.movedim(1, -1)  # (B, H, W, C), of clips (B, T, H, W, C)
        outs = []
        for stage, (before, blocks) in enumerate(self.parts()[: max(indices) + 1]):
            x = self.add_positions(before(x), stage)
            for block in blocks:
                x = run_block(block, x, self.with_cp)
            x = self.end_stage(x, stage)
            if stage in indices:
                outs.append(take(x, stage))
        return tuple(outs)

    def add_positions(self, x: Tensor, stage: int) -> Tensor:
        """Add a stage's position embedding; shape (B, H, W, C), none here."""
        return x

    def end_stage(self, x: Tensor, stage: int) -> Tensor:
        """Return what the next stage gets; shape (B, H, W, C)."""
        return x

    def output(self, x: Tensor, stage: int) -> Tensor:
        if str(stage) in self.out_norms:
            x = self.out_norms[str(stage)](x)
        return x.movedim(-1, 1)
