"""Dot-product attention with a bias that has gradients."""

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .derivatives import is_transformed


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Return `F.scaled_dot_product_attention(q, k, v, bias)`.

    PyTorch chooses a kernel without gradients of the bias where a transform of
    `torch.func` hides that the bias requires them. There, its formula is used.
    """
    if bias is None or not is_transformed():
        return F.scaled_dot_product_attention(q, k, v, bias)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, bias)
