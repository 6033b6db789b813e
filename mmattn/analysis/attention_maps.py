"""Attention kernels: how a query pixel weighs the values, in each layer and head.

What Figures 4 and 8 of "Lightweight Structure-Aware Attention for Visual Understanding"
(https://arxiv.org/abs/2211.16289) show. The operators are seen as a backbone calls
them, so nothing need be known about its modules, and only the rows of the queries are
computed, never N x N.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmattn.ops.structure_aware_attention.spectrum import irfft_grid

from .kernel_rows import landmark_kernels, softmax_kernels, structure_aware_kernels
from .token_grid import token_grid

READABLE = (
    'F.scaled_dot_product_attention, softmax of N x N scores, and our operators '
    "structure_aware_attention and landmark_attention, except with backend='reference'"
)

logger = logging.getLogger('mmattn')


@dataclass(frozen=True)
class AttentionKernels:
    """The kernels of one layer.

    Attributes:
        layer: name of the module that called the operator.
        kernels: shape (queries, M, H, W), on the layer's grid; in softmax attention the
            tokens that stand before the grid (a class token) are left out.
        cells: row and column of each query on that grid.
    """

    layer: str
    kernels: Tensor
    cells: tuple[tuple[int, int], ...]


@torch.no_grad()
def attention_kernels(
    backbone: nn.Module, image: Tensor, queries: Sequence[tuple[float, float]]
) -> list[AttentionKernels]:
    """Runs a backbone and returns the kernels of every attention it called, in order.

    Args:
        backbone: a module whose attention layers take tokens or maps. It runs in the
            mode it is in, and without `torch.compile`.
        image: shape (1, 3, H, W).
        queries: places (y, x) in the image, in pixels; (0.5, 0.5) is the middle of the
            first one. A layer's query is the cell of its grid that the place lies in.

    Raises:
        ValueError: not one image, a query outside it, or no attention that can be read.
    """
    if image.dim() != 4 or len(image) != 1:
        raise ValueError(f'image must have shape (1, 3, H, W), got {image.shape}')
    H, W = image.shape[-2:]
    for y, x in queries:
        if not (0 <= y < H and 0 <= x < W):
            raise ValueError(f'query ({y}, {x}) is outside of the {H}x{W} image')
    with (
        torch.compiler.set_stance('force_eager'),
        _CallStack(backbone) as stack,
        _Operators(stack, (H, W), queries) as seen,
    ):
        backbone(image)
    for reason in dict.fromkeys(seen.skipped):
        logger.warning('not shown: %s', reason)
    if not seen.found:
        kinds = sorted({type(module).__name__ for module in backbone.modules()})
        raise ValueError(
            f'{type(backbone).__name__} called no attention whose kernels can be read, '
            f'as of {READABLE}; its modules are {", ".join(kinds)}'
        )
    return seen.found


class _CallStack:
    """Names and first arguments of the modules being run, the innermost last."""

    def __init__(self, root: nn.Module):
        self.root = root
        self.calls: list[tuple[str, Tensor | None]] = []

    def __enter__(self):
        self.handles = []
        for name, module in self.root.named_modules():
            self.handles += [
                module.register_forward_pre_hook(self._push(name)),
                module.register_forward_hook(self._pop),
            ]
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def _push(self, name: str):
        def hook(module, args):
            self.calls.append((name, args[0] if args else None))

        return hook

    def _pop(self, *_):
        self.calls.pop()


class _Operators(TorchFunctionMode):
    """Sees the operators that are called within it, and reads their kernels."""

    def __init__(self, stack: _CallStack, image_size, queries):
        super().__init__()
        self.stack = stack
        self.image_size = image_size
        self.queries = queries
        self.found: list[AttentionKernels] = []
        self.skipped: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._see_sdpa(*args, **kwargs)
        elif func in (F.softmax, torch.softmax, Tensor.softmax):
            self._see_softmax(out)
        elif func is torch.ops.mmattn.structure_aware_attention:
            self._see_structure_aware(*args)
        elif func is torch.ops.mmattn.landmark_attention:
            self._see_landmark(*args)
        return out

    def _see_sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ):
        if query.dim() != 4 or query.shape[:-1] != key.shape[:-1] or is_causal:
            layer, _ = self._caller(query.shape[-2])
            shapes = f'{tuple(query.shape)} and {tuple(key.shape)}'
            self.skipped.append(f'{layer}: queries and keys of {shapes}')
            return
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:3], query.shape[2])[0]
        self._add(
            query.transpose(1, 2),
            lambda rows: softmax_kernels(
                query[0], key[0], rows, mask=attn_mask, scale=scale
            ),
        )

    def _see_softmax(self, scores: Tensor):
        """Of (B, M, N, N), which need not be attention, only token grids are kept."""
        if scores.dim() == 4 and scores.shape[2] == scores.shape[3]:
            self._add(
                scores.transpose(1, 2),
                lambda rows: scores[0, :, list(rows)].transpose(0, 1),
            )

    def _see_structure_aware(self, q, k, v, w_a, w_b, bias, grid, backend):
        w_a, w_b = irfft_grid(w_a, tuple(grid)), irfft_grid(w_b, tuple(grid))
        self._add(
            q,
            lambda rows: structure_aware_kernels(
                *(x[0].to(w_a.dtype) for x in (q, k)), w_a, w_b, rows
            ),
        )

    def _see_landmark(self, q, k, v, *others):
        self._add(q, lambda rows: landmark_kernels(q, k, v, *others, rows=rows))

    def _add(self, tokens: Tensor, kernels_of_rows):
        """Keeps the kernels of a call; `tokens` has shape (B, N, ...)."""
        B, N = tokens.shape[:2]
        layer, grid = self._caller(N)
        if B != 1 or grid is None:
            self.skipped.append(f'{layer}: {B} x {N} tokens are no grid of the image')
            return
        prefix, H, W = grid
        height, width = self.image_size
        cells = tuple(
            (int(y * H / height), int(x * W / width)) for y, x in self.queries
        )
        rows = [prefix + row * W + column for row, column in cells]
        kernels = kernels_of_rows(rows)[..., prefix:].unflatten(-1, (H, W))
        self.found.append(AttentionKernels(layer, kernels, cells))

    def _caller(self, N: int) -> tuple[str, tuple[int, int, int] | None]:
        """The module that called, and prefix, height and width of its N tokens.

        A softmax or dropout that is a module of its own is given N x N scores; what
        calls it is the layer.
        """
        for name, x in reversed(self.stack.calls):
            if not isinstance(x, Tensor) or x.shape[-2:] == (N, N):
                continue
            if x.dim() == 4:
                for H, W in (x.shape[1:3], x.shape[2:]):  # channels last, or first
                    if H * W == N:
                        return name, (0, H, W)
            return name, token_grid(N, self.image_size)
        return 'backbone', token_grid(N, self.image_size)
