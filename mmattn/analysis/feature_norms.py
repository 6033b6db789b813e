"""L2 norms of the features after each block of a backbone.

What Figure 9 of "Lightweight Structure-Aware Attention for Visual Understanding"
(https://arxiv.org/abs/2211.16289) shows.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .one_image import check_one_image, module_kinds, run_with_hooks
from .token_grid import possible_grids, token_grid

if TYPE_CHECKING:
    from mmattn.models.backbones.base_backbone import BaseBackbone

CONTAINERS = (nn.ModuleList, nn.Sequential)


@torch.no_grad()
def feature_norms(backbone: nn.Module, image: Tensor) -> dict[str, Tensor]:
    """Runs a backbone; the names of its blocks, in order, and maps (H, W) of norms.

    The blocks of a backbone of ours are what it calls its blocks; of another one, what
    its module lists and sequences hold, as far as that returns maps or tokens.

    Args:
        backbone: runs in the mode it is in, and without `torch.compile`.
        image: shape (1, 3, H, W).

    Raises:
        ValueError: not one image, or nothing that is known as a block.
    """
    check_one_image(image)
    from mmattn.models.backbones.base_backbone import BaseBackbone

    ours = isinstance(backbone, BaseBackbone)
    names = {module: name for name, module in backbone.named_modules()}
    norms = {}

    def keep(block: nn.Module, args, out):
        out = out[0] if isinstance(out, tuple | list) else out
        if not isinstance(out, Tensor):
            return
        features = out if ours else channels_last(out, image.shape[-2:])
        if features is not None:
            norms[names[block]] = torch.linalg.vector_norm(features[0], dim=-1)

    blocks = _our_blocks(backbone) if ours else _listed_blocks(backbone)
    run_with_hooks(backbone, image, dict.fromkeys(blocks, keep))
    if not norms:
        raise ValueError(
            f'{type(backbone).__name__} has no blocks whose output is a grid; its '
            f'modules are {module_kinds(backbone)}'
        )
    return norms


def channels_last(x: Tensor, image_size: Sequence[int]) -> Tensor | None:
    """Maps (B, H, W, C) of an image, from (B, C, H, W), (B, H, W, C) or (B, N, C).

    Which it is, is seen from the sides; None if they are no grid of the image.
    """
    if x.dim() == 3:
        grid = token_grid(x.shape[1], image_size)
        return grid and x[:, grid[0] :].unflatten(1, grid[1:])
    if x.dim() == 4:
        grids = possible_grids(image_size)
        if tuple(x.shape[2:]) in grids:
            return x.permute(0, 2, 3, 1)
        if tuple(x.shape[1:3]) in grids:
            return x
    return None


def _our_blocks(backbone: 'BaseBackbone') -> Iterator[nn.Module]:
    """As `BaseBackbone.stages` says, without the stem."""
    for stage in backbone.stages()[1:]:
        lists = [part for part in stage if isinstance(part, nn.ModuleList)]
        yield from chain(*lists) if lists else stage


def _listed_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """What lists and sequences of modules hold that is not one itself."""
    listed = isinstance(module, CONTAINERS)
    for child in module.children():
        if isinstance(child, CONTAINERS):
            yield from _listed_blocks(child)
        elif listed:
            yield child
