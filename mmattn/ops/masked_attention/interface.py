"""Contract, checks, autograd and dispatch of masked attention."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backend import check_cotangent, is_autocast_on, needs_reference, select_backend
from . import cpu_impl, reference, triton_impl

OPERATOR = 'masked_attention'
BACKENDS = {'triton': triton_impl, 'cpu': cpu_impl, 'reference': reference}
MASK_FILLS = ('zero', 'neg_inf')


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Sequence[int],
    *,
    kernel_size: int = 3,
    num_special: int = 0,
    masked_heads: int | Sequence[int] | None = None,
    bias: Tensor | None = None,
    global_bias: Tensor | None = None,
    alpha: Tensor | None = None,
    mask_fill: str = 'zero',
    backend: str | None = None,
) -> Tensor:
    """Attention with masked heads, which prefer their neighbors, and global heads.

    A masked head multiplies its scores by an R x R neighborhood mask before the
    softmax, `out = softmax(mask * (q k^T / sqrt(D) + bias)) v`: what is outside the
    mask keeps the weight e^0, and the head is linear in N. From "MaiT: Leverage
    Attention Masks for More Efficient Image Transformers",
    https://arxiv.org/abs/2207.03006, equation 2. A soft mask has `alpha` in place of
    its zeros (section 4.3), and is quadratic. B batch, N = num_special + H * W tokens,
    the special ones first, the patches in row-major order, M heads, D head width, R
    width of the mask.

    Args:
        q, k, v: shape (B, N, M, D), float32, float16, bfloat16 or float64, of one
            dtype. Scores and softmax are in float32 (float64 in float64).
        grid: H and W of the patches.
        kernel_size: width R of the mask, odd; clipped at the borders.
        num_special: tokens, such as a class token, that see and are seen by all.
        masked_heads: how many of the lowest heads are masked, or their indices; None
            masks all. The others are global, and quadratic.
        bias: shape (masked heads, R, R), added to scores between patches inside the
            mask: `bias[h, R // 2 + y_k - y_q, R // 2 + x_k - x_q]` for the query at
            (y_q, x_q) and the key at (y_k, x_k). Of hard masks only.
        global_bias: shape (global heads, N, N), added to the global heads' scores.
        alpha: shape (masked heads,), in [0, 1]; what scores outside the mask are
            multiplied by. None is a hard mask. 1 is plain attention.
        mask_fill: 'zero' (the paper's), or 'neg_inf' to give all outside the mask no
            weight, which is neighborhood attention. Of hard masks only.
        backend: 'triton', 'cpu', 'reference', or None to take the fastest one that can
            run the call, for masked heads; global heads go through PyTorch's
            `scaled_dot_product_attention`. 'reference' alone can be differentiated
            twice. It runs by itself in forward mode and under `torch.func.grad`.

    Returns:
        Shape (B, N, M, D), dtype as q. Under autocast q, k and v are cast to autocast's
        dtype first.

    Raises:
        ValueError: shapes, dtypes, devices or settings disagree, or `backend` cannot
            run this.

    Example:
        >>> q, k, v = torch.randn(3, 2, 1 + 14 * 14, 3, 64).unbind()
        >>> masked_attention(q, k, v, (14, 14), num_special=1, masked_heads=2).shape
        torch.Size([2, 197, 3, 64])
    """
    device_type = q.device.type
    if is_autocast_on(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            return masked_attention(
                *(x.to(dtype) for x in (q, k, v)),
                grid,
                kernel_size=kernel_size,
                num_special=num_special,
                masked_heads=masked_heads,
                bias=bias,
                global_bias=global_bias,
                alpha=alpha,
                mask_fill=mask_fill,
                backend=backend,
            )
    grid = _check(q, k, v, grid, kernel_size, num_special, mask_fill)
    masked_heads = resolve_heads(masked_heads, q.shape[2])
    masked = [head in masked_heads for head in range(q.shape[2])]
    _check_extras(q, kernel_size, masked, bias, global_bias, alpha, mask_fill)
    tensors = [x for x in (q, k, v, bias, global_bias, alpha) if x is not None]
    devices = {str(x.device) for x in tensors}
    if len(devices) > 1:
        raise ValueError(f'all tensors must be on one device, got {sorted(devices)}')
    backend = select_backend(OPERATOR, backend, BACKENDS, q, k, v, bias, alpha)
    stencil = dict(
        grid=grid, kernel_size=kernel_size, num_special=num_special, mask_fill=mask_fill
    )
    outs = []
    for is_masked, heads, rank in _runs(masked):
        views = [x[:, :, heads] for x in (q, k, v)]
        if is_masked:
            extras = [None if x is None else x[rank] for x in (bias, alpha)]
            outs.append(_masked_heads(*views, *extras, backend=backend, **stencil))
        else:
            extra = None if global_bias is None else global_bias[rank]
            outs.append(_global_heads(*views, extra, backend))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def _masked_heads(q, k, v, bias, alpha, *, backend, **stencil):
    if backend == 'reference':
        return reference.masked_attention_reference(q, k, v, bias, alpha, **stencil)
    return torch.ops.mmattn.masked_attention(
        q, k, v, bias, alpha, *stencil.values(), backend
    )[0]


def _global_heads(q, k, v, bias, backend):
    if backend == 'reference' or needs_reference(q, k, v, bias):
        everything = torch.ones((), dtype=torch.bool, device=q.device)
        return reference.attention_under_mask(q, k, v, everything, bias)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    if bias is not None:
        bias = bias[None].to(q.dtype)  # of three dimensions it would be slow on CPUs
    return F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2)


def resolve_heads(heads: int | Sequence[int] | None, num_heads: int) -> tuple[int, ...]:
    """Ascending indices of heads, from those or from how many of the lowest.

    None is all of them.
    """
    if heads is None:
        return tuple(range(num_heads))
    is_count = isinstance(heads, int)
    indices = range(heads) if is_count else sorted(set(heads))
    if (is_count and heads < 0) or any(not 0 <= head < num_heads for head in indices):
        raise ValueError(
            f'masked heads must be a number up to {num_heads} or their indices, '
            f'got {heads}'
        )
    return tuple(indices)


def _runs(masked: list[bool]) -> Iterator[tuple[bool, slice, slice]]:
    """Neighboring heads of one kind: the kind, the heads, their ranks in the kind."""
    start, seen = 0, {True: 0, False: 0}
    for is_masked, run in groupby(masked):
        length = len(list(run))
        first = seen[is_masked]
        yield is_masked, slice(start, start + length), slice(first, first + length)
        start += length
        seen[is_masked] += length


def _check(q, k, v, grid, kernel_size, num_special, mask_fill):
    """Returns the grid."""
    if q.dim() != 4 or k.shape != q.shape or v.shape != q.shape:
        raise ValueError(
            'q, k and v must have one shape (B, N, M, D), got '
            f'{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}'
        )
    _, N, M, D = q.shape
    if N == 0 or M == 0 or D == 0:
        raise ValueError(f'needs tokens, heads and channels, got {N=}, {M=}, {D=}')
    if len({x.dtype for x in (q, k, v)}) > 1 or not q.is_floating_point():
        raise ValueError(
            'q, k and v must have one floating-point dtype, got '
            f'{[str(x.dtype) for x in (q, k, v)]}'
        )
    grid = tuple(grid)
    if len(grid) != 2 or num_special < 0 or num_special + grid[0] * grid[1] != N:
        raise ValueError(
            f'{N} tokens are not num_special={num_special} and a grid {grid}'
        )
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f'kernel_size must be odd, got {kernel_size}')
    if mask_fill not in MASK_FILLS:
        raise ValueError(f'mask_fill must be one of {MASK_FILLS}, got {mask_fill!r}')
    return grid


def _check_extras(q, kernel_size, masked, bias, global_bias, alpha, mask_fill):
    N, num_masked = q.shape[1], sum(masked)
    shapes = {
        'bias': (bias, (num_masked, kernel_size, kernel_size)),
        'global_bias': (global_bias, (len(masked) - num_masked, N, N)),
        'alpha': (alpha, (num_masked,)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f'{name} must have shape {shape}, got {tuple(tensor.shape)}'
            )
    if alpha is not None and (bias is not None or mask_fill != 'zero'):
        raise ValueError(
            "a soft mask (alpha) takes no bias and no mask_fill but 'zero', got "
            f'{mask_fill=} and bias {None if bias is None else tuple(bias.shape)}'
        )


TENSORS = 'Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? alpha'
STENCIL = 'SymInt[] grid, SymInt kernel_size, SymInt num_special, str mask_fill'


def _call(function, tensors, settings):
    names = ('grid', 'kernel_size', 'num_special', 'mask_fill')
    return function(*tensors, **dict(zip(names, settings, strict=True)))


@torch.library.custom_op(
    'mmattn::masked_attention',
    mutates_args=(),
    schema=f'({TENSORS}, {STENCIL}, str backend) -> (Tensor, Tensor)',
)
def _forward(*args):
    """Output, and the log of each row's sum of exponentials (B, M, N)."""
    *settings, backend = args[5:]
    return _call(BACKENDS[backend].forward, args[:5], settings)


@_forward.register_fake
def _(q, k, v, bias, alpha, grid, kernel_size, num_special, mask_fill, backend):
    B, N, M, _ = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        q.new_empty(B, M, N, dtype=dtype),
    )


@torch.library.custom_op(
    'mmattn::masked_attention_backward',
    mutates_args=(),
    schema=f'(Tensor grad, Tensor out, Tensor lse, {TENSORS}, {STENCIL}, str backend) '
    '-> Tensor[]',
)
def _backward(*args):
    """Gradients of q, k, v and of those of bias and alpha that exist."""
    *settings, backend = args[8:]
    with torch.autocast(args[0].device.type, enabled=False):
        grads = _call(BACKENDS[backend].backward, args[:8], settings)
    return [grad for grad in grads if grad is not None]


@_backward.register_fake
def _(grad, out, lse, q, k, v, bias, alpha, *settings):
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in (q, k, v, bias, alpha)
        if x is not None
    ]


def _setup_context(ctx, inputs, output):
    ctx.settings = inputs[5:]
    ctx.save_for_backward(*output, *inputs[:5])


def _autograd(ctx, grad, grad_lse):
    check_cotangent(OPERATOR, grad)
    saved = ctx.saved_tensors
    grads = iter(
        torch.ops.mmattn.masked_attention_backward(grad, *saved, *ctx.settings)
    )
    return *(None if x is None else next(grads) for x in saved[2:]), *([None] * 5)


_forward.register_autograd(_autograd, setup_context=_setup_context)
