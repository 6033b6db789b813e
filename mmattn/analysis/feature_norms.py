"""L2 norms of the features after each block of a backbone.

Figure 9 of "Lightweight Structure-Aware Attention for Visual Understanding"
(https://arxiv.org/abs/2211.16289) shows them.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mmattn.errors import UserError

from .one_image import check_one_image, module_kinds, run_with_hooks
from .token_grid import possible_grids, token_grid

if TYPE_CHECKING:
    from mmattn.models.backbones.base_backbone import BaseBackbone

CONTAINERS = (nn.ModuleList, nn.Sequential)


@torch.no_grad()
def feature_norms(backbone: nn.Module, image: Tensor) -> dict[str, Tensor]:
    """Run a backbone and return maps (H, W) of norms by block, in order.

    Our backbones name their blocks. The blocks of another backbone are the modules in
    its module lists and sequences that return maps or tokens.

    Args:
        backbone: runs in its current mode and without `torch.compile`.
        image: shape (1, 3, H, W).

    Raises:
        ValueError: there is not one image, or the backbone has no known blocks.
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
    run_with_hooks(lambda: backbone(image), dict.fromkeys(blocks, keep))
    if not norms:
        raise UserError(
            f'{type(backbone).__name__} has no blocks whose output is a grid; its '
            f'modules are {module_kinds(backbone)}'
        )
    return norms


def channels_last(x: Tensor, image_size: Sequence[int]) -> Tensor | None:
    """Return maps (B, H, W, C) from (B, C, H, W), (B, H, W, C) or (B, N, C).

    The sides tell the layouts apart. The result is None if they fit no grid of the
    image.
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
    for level in backbone.levels:
        yield from getattr(level, 'blocks', [level])


def _listed_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules in lists and sequences, but not nested lists themselves."""
    listed = isinstance(module, CONTAINERS)
    for child in module.children():
        if isinstance(child, CONTAINERS):
            yield from _listed_blocks(child)
        elif listed:
            yield child
