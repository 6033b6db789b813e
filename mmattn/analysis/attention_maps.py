"""Attention kernels and maps: how queries weigh the values, in each layer and head.

Kernels are the rows of a few queries, never an N x N matrix. Figures 4 and 8 of
"Lightweight Structure-Aware Attention for Visual Understanding"
(https://arxiv.org/abs/2211.16289) show them. Maps are all rows, for measurements on
whole attention matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from mmattn.errors import UserError

from .attention_calls import AttentionCall, watch_attention
from .one_image import check_place

# A head's N x N weights take 64 MB in float32.
MAX_TOKENS = 4096
LEAST_TOP = 2.0  # of a scale in multiples of the mean


@dataclass(frozen=True)
class AttentionKernels:
    """The kernels of one layer.

    Attributes:
        layer: name of the module that called the operator.
        kernels: shape (queries, M, H, W), on the layer's grid. Tokens before the grid,
            such as a class token, are left out.
        cells: row and column of each query on that grid.
    """

    layer: str
    kernels: Tensor
    cells: tuple[tuple[int, int], ...]


def multiples_of_mean(weights: Tensor) -> np.ndarray:
    """Return the weights of each head as multiples of the mean of their sizes.

    Args:
        weights: shape (M, ...). Weights that are all 0 stay so.
    """
    found = weights.float().cpu().numpy()
    means = np.abs(found).mean(tuple(range(1, found.ndim)), keepdims=True)
    return np.divide(found, means, np.zeros_like(found), where=means > 0)


def top_of(multiples: np.ndarray) -> float:
    """Return the end of a scale of colors for multiples of the mean.

    It is at least 2, so that nearly uniform weights are not bright.
    """
    return max(LEAST_TOP, float(np.abs(multiples).max()))


@dataclass(frozen=True)
class AttentionMap:
    """The attention matrices of one layer's heads, which multiply the values.

    Attributes:
        layer: name of the module that called the operator.
        weights: shape (M, N, N), N = num_special + H * W, special tokens first. Row i
            weighs the values for token i. The rows of a softmax sum up to 1.
        num_special: tokens before the grid, such as a class token.
        grid: H and W of the others.
    """

    layer: str
    weights: Tensor
    num_special: int
    grid: tuple[int, int]


def attention_kernels(
    backbone: nn.Module, image: Tensor, queries: Sequence[tuple[float, float]]
) -> list[AttentionKernels]:
    """Run a backbone and return the kernels of every attention it calls, in order.

    Args:
        backbone: a module whose attention layers take tokens or maps. It runs in its
            current mode and without `torch.compile`.
        image: shape (1, 3, H, W).
        queries: places (y, x) in the image, in pixels; (0.5, 0.5) is the middle of the
            first one. A layer's query is the cell of its grid that the place lies in.

    Raises:
        ValueError: there is not one image, a query is outside it, or no attention can
            be read.
    """
    height, width = image.shape[-2:]
    for query in queries:
        check_place('query', query, (height, width))

    def read(call: AttentionCall) -> AttentionKernels:
        H, W = call.grid
        cells = tuple((int(y * H / height), int(x * W / width)) for y, x in queries)
        rows = call.rows([call.num_special + y * W + x for y, x in cells])
        kernels = rows[..., call.num_special :].unflatten(-1, (H, W))
        return AttentionKernels(call.caller.name, kernels, cells)

    return watch_attention(backbone, image, read)


def attention_maps(
    backbone: nn.Module, image: Tensor, *, effective: bool = False
) -> list[AttentionMap]:
    """Run a backbone and return the map of every softmax attention, in order.

    Args:
        backbone: as in `attention_kernels`.
        image: shape (1, 3, H, W).
        effective: whether to include attention whose map is no softmax: the product
            A_Q A_K of landmark attention, the mixed softmax of dense attention with
            interaction, and the kernels of structure-aware attention. Such rows may
            have negative weights and need not sum up to 1. Branches around an operator,
            such as the convolution and the gate of `InteractiveAttention`, are no part
            of its map.

    Raises:
        ValueError: there is not one image, a layer has more than 4096 tokens, or no
            attention of the kinds asked for can be read.
    """
    return watch_attention(backbone, image, whole_map, softmax_only=not effective)


def whole_map(call: AttentionCall) -> AttentionMap:
    """Return all rows of an attention.

    Raises:
        ValueError: it has more than 4096 tokens.
    """
    if call.num_tokens > MAX_TOKENS:
        raise UserError(
            f'attention maps support at most {MAX_TOKENS} tokens, got '
            '{} on a grid of {}x{}'.format(call.num_tokens, *call.grid)
        )
    weights = call.rows(range(call.num_tokens)).transpose(0, 1)
    return AttentionMap(call.caller.name, weights, call.num_special, call.grid)
