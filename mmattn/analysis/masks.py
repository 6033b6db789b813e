"""The layers of a backbone that mask heads, and what they learned."""

import torch
from torch import Tensor, nn

KERNEL_SIZE = 3
ATTRIBUTES = 'masked_heads', 'num_heads', 'kernel_size', 'alpha'


def mask_layers(backbone: nn.Module) -> dict[str, nn.Module]:
    """Names and attention layers that can mask heads, `MaskedAttention` and the like.

    A layer of which all heads are global is one of them, too.
    """
    return {
        name: module
        for name, module in backbone.named_modules()
        if all(hasattr(module, attribute) for attribute in ATTRIBUTES)
    }


def mask_width(backbone: nn.Module) -> int:
    """Of the backbone's masks; 3, the paper's, where it has none."""
    layers = mask_layers(backbone).values()
    widths = {layer.kernel_size for layer in layers if layer.masked_heads}
    if len(widths) > 1:
        raise ValueError(
            f'masks have several widths, {sorted(widths)}: say a kernel_size'
        )
    return widths.pop() if widths else KERNEL_SIZE


@torch.no_grad()
def mask_alphas(backbone: nn.Module) -> Tensor:
    """What soft masks multiply scores of patches that are no neighbors by.

    From "MaiT: Leverage Attention Masks for More Efficient Image Transformers",
    https://arxiv.org/abs/2207.03006, section 4.3: near 0 a head is local, near 1
    global.

    Returns:
        Shape (L, M), in (0, 1), layers as they are registered. NaN is a head that has
        no soft mask, or that a layer with fewer than M heads does not have.

    Raises:
        ValueError: the backbone has no soft mask.
    """
    layers = mask_layers(backbone).values()
    if all(layer.alpha is None for layer in layers):
        raise ValueError(f'{type(backbone).__name__} has no soft masks')
    M = max(layer.num_heads for layer in layers)
    alphas = torch.full((len(layers), M), float('nan'))
    for row, layer in zip(alphas, layers, strict=True):
        if layer.alpha is not None:
            row[list(layer.masked_heads)] = layer.alpha.to(row)
    return alphas
