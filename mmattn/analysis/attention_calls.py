"""Watch the attention operators that a backbone calls, and read rows of their matrices.

The operators are seen as they are called, so a backbone may have any modules.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import mmattn.ops  # noqa: F401  fills OPERATORS
from mmattn.errors import UserError
from mmattn.ops.common.inspection import Attention
from mmattn.ops.common.operator import OPERATORS
from mmattn.ops.landmark_attention import mix_heads

from .one_image import check_one_image, module_kinds
from .token_grid import token_grid

READ = {each.forward: each for each in OPERATORS.values() if each.attention}
READABLE = (
    'F.scaled_dot_product_attention, softmax of N x N scores, and our operators '
    f'{", ".join(each.name for each in READ.values())} except with '
    "backend='reference'"
)

logger = logging.getLogger('mmattn')


@dataclass(frozen=True)
class ModuleCall:
    """A module that is running, and what it was called with."""

    name: str
    module: nn.Module
    args: tuple


@dataclass(frozen=True)
class AttentionCall:
    """The attention of one layer, which returns rows of its heads' matrices.

    Attributes:
        caller: the module that called the operator.
        num_special: tokens before the grid, such as a class token.
        grid: height and width of the other tokens, which are in row-major order.
        num_heads: M.
        parts: functions that take indices of rows and return the rows
            (len(rows), heads, N) of some heads.
    """

    caller: ModuleCall
    num_special: int
    grid: tuple[int, int]
    num_heads: int
    parts: tuple[Callable[[Sequence[int]], Tensor], ...]

    @property
    def num_tokens(self) -> int:
        return self.num_special + self.grid[0] * self.grid[1]

    @property
    def is_whole(self) -> bool:
        """Return False while the layer has called operators on only some heads."""
        heads = getattr(self.caller.module, 'num_heads', None)
        return not isinstance(heads, int) or self.num_heads >= heads

    def rows(self, indices: Sequence[int]) -> Tensor:
        """Return rows of all heads, shape (len(indices), M, N)."""
        return torch.cat([part(indices) for part in self.parts], dim=1)


@torch.no_grad()
def watch_attention(
    backbone: nn.Module,
    image: Tensor,
    read: Callable[[AttentionCall], object],
    *,
    softmax_only: bool = False,
) -> list:
    """Run a backbone and return what `read` returns for each attention, in order.

    A layer may call operators on some of its `num_heads` heads at a time. It counts as
    one attention, with its heads in the order of the calls.

    Args:
        backbone: runs in its current mode and without `torch.compile`.
        image: shape (1, 3, H, W).
        read: called as soon as a layer is complete. Only its result is kept.
        softmax_only: whether to skip operators whose rows are not a softmax.

    Raises:
        ValueError: there is not one image, or no attention can be read.
    """
    check_one_image(image)
    with ExitStack() as contexts:
        contexts.enter_context(torch.compiler.set_stance('force_eager'))
        stack = contexts.enter_context(_CallStack(backbone))
        operators = _Operators(stack, image.shape[-2:], read, softmax_only)
        seen = contexts.enter_context(operators)
        backbone(image)
    seen.finish_layer()
    for reason in dict.fromkeys(seen.skipped):
        logger.warning('not shown: %s', reason)
    if not seen.found:
        raise UserError(
            f'{type(backbone).__name__} called no attention whose kernels can be read, '
            f'as of {READABLE}; its modules are {module_kinds(backbone)}'
        )
    return seen.found


def watch_images(
    backbone: nn.Module, images: Iterable[Tensor], read: Callable, **options
) -> list[tuple]:
    """Return by layer what `watch_attention` returns for each image, (3, H, W)."""
    runs = [watch_attention(backbone, x[None], read, **options) for x in images]
    if not runs:
        raise UserError('`images` must hold at least one image')
    return list(zip(*runs, strict=True))


class _CallStack:
    """Keep the modules that are running, the innermost last."""

    def __init__(self, root: nn.Module):
        self.root = root
        self.calls: list[ModuleCall] = []

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
            self.calls.append(ModuleCall(name, module, args))

        return hook

    def _pop(self, *_):
        self.calls.pop()


class _Operators(TorchFunctionMode):
    """Watch the operators that are called in this context, and read their rows."""

    def __init__(self, stack: _CallStack, image_size, read, softmax_only):
        super().__init__()
        self.stack = stack
        self.image_size = image_size
        self.read = read
        self.softmax_only = softmax_only
        self.layer: AttentionCall | None = None  # the last one, until it is complete
        self.found = []
        self.skipped: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self._see_sdpa(*args, **kwargs)
        elif func in (F.softmax, torch.softmax, Tensor.softmax):
            self._see_softmax(out)
        elif func in READ:
            self._add(READ[func].attention_of(*args))
        return out

    def finish_layer(self):
        if self.layer is not None:
            self.found.append(self.read(self.layer))
            self.layer = None

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
            self.skipped.append(f'{layer.name}: queries and keys of {shapes}')
            return
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:3], query.shape[2])[0]
        B, M, N = query.shape[:3]
        self._add(
            Attention(
                (B, N, M),
                lambda rows: softmax_kernels(query[0], key[0], rows, attn_mask, scale),
            )
        )

    def _see_softmax(self, weights: Tensor):
        """Keep weights (B, M, N, N); `_add` skips those that are no token grid's.

        A module with `softmax_mixing` (M, E) mixes the heads of its weights (B, E, N,
        N) afterwards.
        """
        if weights.dim() != 4 or weights.shape[2] != weights.shape[3]:
            return
        module = self._caller(weights.shape[2])[0].module
        mixing = getattr(module, 'softmax_mixing', None)
        weights = mix_heads(weights, mixing)
        B, M, N = weights.shape[:3]
        self._add(
            Attention(
                (B, N, M),
                lambda rows: weights[0, :, list(rows)].transpose(0, 1),
                is_softmax=mixing is None,
            )
        )

    def _add(self, attention: Attention):
        """Keep the heads of a call."""
        B, N, M = attention.shape
        caller, seen_grid = self._caller(N)
        grid = attention.grid or seen_grid
        if B != 1 or grid is None:
            reason = f'{B} x {N} tokens are no grid of the image'
            self.skipped.append(f'{caller.name}: {reason}')
            return
        if self.softmax_only and not attention.is_softmax:
            self.skipped.append(f'{caller.name}: its kernels are no softmax')
            return
        last = self.layer
        if last is not None and last.caller is caller and last.num_tokens == N:
            heads, parts = last.num_heads + M, (*last.parts, attention.rows)
            self.layer = replace(last, num_heads=heads, parts=parts)
        else:
            self.finish_layer()
            self.layer = AttentionCall(
                caller, grid[0], tuple(grid[1:]), M, (attention.rows,)
            )
        if self.layer.is_whole:
            self.finish_layer()

    def _caller(self, N: int) -> tuple[ModuleCall, tuple[int, int, int] | None]:
        """Return the calling module, and prefix, height and width of its N tokens.

        A softmax or dropout module gets N x N scores, so the layer is the module around
        it. A layer may get its grid as the argument after the tokens.
        """
        for call in reversed(self.stack.calls):
            x = call.args[0] if call.args else None
            if not isinstance(x, Tensor) or x.shape[-2:] == (N, N):
                continue
            if x.dim() == 4:
                for H, W in (x.shape[1:3], x.shape[2:]):  # channels last, or first
                    if H * W == N:
                        return call, (0, H, W)
            if len(call.args) > 1 and _is_grid(call.args[1], N):
                H, W = call.args[1]
                return call, (N - H * W, H, W)
            return call, token_grid(N, self.image_size)
        return ModuleCall('backbone', self.stack.root, ()), token_grid(
            N, self.image_size
        )


def softmax_kernels(
    q: Tensor,
    k: Tensor,
    rows: Sequence[int],
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    """Return rows (len(rows), M, N) of `softmax(q k^T scale + mask)`.

    q and k are (M, N, D), and the mask broadcasts to (M, N, N). A boolean mask keeps
    the scores where it is True. The scale defaults to D^-0.5.
    """
    rows = list(rows)
    scores = q[:, rows] @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        mask = mask.expand(len(q), q.shape[1], k.shape[1])[:, rows]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
    return scores.softmax(-1).transpose(0, 1)


def _is_grid(x: object, N: int) -> bool:
    """Return whether `x` is the height and width of N tokens, some special."""
    is_pair = isinstance(x, Sequence) and not isinstance(x, str) and len(x) == 2
    return is_pair and all(isinstance(n, int) for n in x) and 0 < x[0] * x[1] <= N
