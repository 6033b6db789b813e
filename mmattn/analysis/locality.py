"""Attention locality score: how much of its attention a head spends on neighbors.

The score is from "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, section 4.2. The paper's search for
masks reads it.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from mmattn.errors import UserError
from mmattn.ops.masked_attention.inspection import patch_offsets

from .attention_calls import AttentionCall, watch_images
from .masks import KERNEL_SIZE, mask_width

CHUNK = 2**24  # weights in memory at a time, 64 MB in float32


def locality_score(
    weights: Tensor, grid: Sequence[int], kernel_size: int = KERNEL_SIZE
) -> Tensor:
    """Return the mean attention of patches to their neighbors: equation 3.

    Rows and columns of special tokens do not count, since the sums run over patches.

    Args:
        weights: attention after the softmax, masked or not, shape (..., N, N),
            N = num_special + H * W, special tokens first.
        grid: H and W of the patches.
        kernel_size: width of the square of patches that are a patch's neighbors. The
            patch itself is one of them.

    Returns:
        Shape (...), in [0, 1].
    """
    N = weights.shape[-1]
    num_special = N - grid[0] * grid[1]
    if weights.dim() < 2 or weights.shape[-2] != N or num_special < 0:
        raise UserError(
            f'weights of shape {tuple(weights.shape)} are no attention of a grid of '
            f'{tuple(grid)}'
        )
    patches = weights[..., num_special:, num_special:]
    return _row_scores(patches, range(patches.shape[-1]), grid, kernel_size).mean(-1)


def _row_scores(
    weights: Tensor, patches: Sequence[int], grid: Sequence[int], kernel_size: int
) -> Tensor:
    """Return the scores (..., len(patches)) of rows (..., len(patches), H * W)."""
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise UserError(f'kernel_size must be odd, got {kernel_size}')
    offset = patch_offsets(patches, grid, device=weights.device)
    near = (offset.abs() <= kernel_size // 2).all(0)
    return (weights * near).sum(-1)


def locality_by_layer(
    backbone: nn.Module, images: Iterable[Tensor], kernel_size: int | None = None
) -> list[tuple[str, Tensor]]:
    """Return the layers of `attention_locality` by name, each with its scores (M,)."""
    if kernel_size is None:
        kernel_size = mask_width(backbone)

    def read(call: AttentionCall) -> tuple[str, Tensor]:
        return call.caller.name, _score_by_chunks(call, kernel_size)

    return [
        (layer[0][0], torch.stack([score for _, score in layer]).mean(0))
        for layer in watch_images(backbone, images, read, softmax_only=True)
    ]


def _score_by_chunks(call: AttentionCall, kernel_size: int) -> Tensor:
    """Return the `locality_score` of a layer's heads (M,), without N x N weights."""
    first, N = call.num_special, call.num_tokens
    step = max(1, CHUNK // (call.num_heads * N))
    total = 0
    for start in range(first, N, step):
        rows = range(start, min(start + step, N))
        weights = call.rows(rows)[..., first:].transpose(0, 1)  # (M, rows, H * W)
        patches = [row - first for row in rows]
        total = total + _row_scores(weights, patches, call.grid, kernel_size).sum(-1)
    return total / (N - first)


def attention_locality(
    backbone: nn.Module, images: Iterable[Tensor], kernel_size: int | None = None
) -> Tensor:
    """Return the scores of each layer and head, averaged over images.

    Args:
        backbone: runs in its current mode, so call `eval()` before. Layers are read as
            in `attention_maps`: masked attention with its masked, soft and global
            heads, neighborhood attention, PyTorch's SDPA, or a softmax of N x N scores.
        images: normalized images, shape (B, 3, H, W), or a sequence of (3, H, W) of
            several sizes. They run one by one.
        kernel_size: width of the neighborhood. It defaults to the width of the
            backbone's masks, or to 3 without masks.

    Returns:
        Shape (L, M), float, layers in the order of their calls. If layers have
        different numbers of heads, M is the largest, and other rows end in NaN.
    """
    layers = locality_by_layer(backbone, images, kernel_size)
    return pad_heads([scores for _, scores in layers])


def pad_heads(scores: Sequence[Tensor]) -> Tensor:
    """Stack scores (M,) of layers to (L, largest M), with NaN for missing heads."""
    return nn.utils.rnn.pad_sequence(
        list(scores), batch_first=True, padding_value=float('nan')
    )
