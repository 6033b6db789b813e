"""Find the layers of a backbone that mask heads, and read what they learned."""

import torch
from torch import Tensor, nn

from mmattn.errors import UserError

KERNEL_SIZE = 3
ATTRIBUTES = 'masked_heads', 'num_heads', 'kernel_size', 'alpha'


def mask_layers(backbone: nn.Module) -> dict[str, nn.Module]:
    """Return attention layers that can mask heads, such as `MaskedAttention`, by name.

    A layer whose heads are all global is one of them, too.
    """
    return {
        name: module
        for name, module in backbone.named_modules()
        if all(hasattr(module, attribute) for attribute in ATTRIBUTES)
    }


def mask_width(backbone: nn.Module) -> int:
    """Return the width of the backbone's masks, or the paper's 3 if it has none."""
    layers = mask_layers(backbone).values()
    widths = {layer.kernel_size for layer in layers if layer.masked_heads}
    if len(widths) > 1:
        raise UserError(
            f'masks have several widths, {sorted(widths)}: pass a kernel_size'
        )
    return widths.pop() if widths else KERNEL_SIZE


@torch.no_grad()
def mask_alphas(backbone: nn.Module) -> Tensor:
    """Return the factors of soft masks for scores of patches that are no neighbors.

    They are alpha of "MaiT: Leverage Attention Masks for More Efficient Image
    Transformers", https://arxiv.org/abs/2207.03006, section 4.3. A head with a factor
    near 0 is local, and one near 1 is global.

    Returns:
        Shape (L, M), in (0, 1), layers in the order of registration. Heads without a
        soft mask, and heads that a layer does not have, are NaN.

    Raises:
        ValueError: the backbone has no soft mask.
    """
    layers = mask_layers(backbone).values()
    if all(layer.alpha is None for layer in layers):
        raise UserError(f'{type(backbone).__name__} has no soft masks')
    M = max(layer.num_heads for layer in layers)
    alphas = torch.full((len(layers), M), float('nan'))
    for row, layer in zip(alphas, layers, strict=True):
        if layer.alpha is not None:
            row[list(layer.masked_heads)] = layer.alpha.to(row)
    return alphas
