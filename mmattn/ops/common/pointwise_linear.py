"""A linear layer over the last axis, by the faster of two matrix products."""

import os
import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .chunks import slices
from .derivatives import runs_eagerly
from .graph_nodes import GraphNode, takes_nodes
from .precision import cast_layer, cast_under_autocast, compute_dtype
from .recompute import source_of

# The convolution is faster from this many tokens and multiplications on. It reorders
# its weight, and in the backward its gradient too, at the same cost for few tokens.
LEAST = {
    'inference': dict(tokens=192, tokens_on_one_thread=384, multiplications=2e7),
    'training': dict(tokens=512, tokens_on_one_thread=768, multiplications=4e7),
}
MIN_IMAGES = 16  # oneDNN runs a convolution on one thread only if it has as many
STRIP = 1 << 21  # elements of a map that the backward computes again at a time
# Stride, padding, dilation, whether transposed, output padding and groups.
CONVOLUTION = (1, 1), (0, 0), (1, 1), False, (0, 0), 1


def pointwise_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `F.linear`, as the equivalent 1x1 convolution where that is faster.

    A token grid with its channels last has the memory layout of a channels_last image.
    oneDNN's convolution on it takes half the time of `F.linear` on a CPU whose AVX-512
    the BLAS does not use, which is so for MKL on CPUs of AMD. The convolution is used
    there, for enough tokens in float32. Elsewhere `F.linear` is as fast or faster.
    A graph compiled for such a CPU has a node that chooses when it runs. Other graphs,
    compiled, traced or exported, have `F.linear`.

    Args:
        x: shape (..., C).
        weight: shape (C_out, C).
        bias: shape (C_out,), or None.

    Returns:
        Shape (..., C_out).
    """
    recipe = None
    if torch.is_grad_enabled():
        recipe, *source = source_of(x, weight, bias)
    if recipe is not None:
        if x.dtype != torch.float64:
            x, weight, bias = cast_under_autocast(x, weight, bias)
        return _Recomputing.apply(x, weight, bias, recipe, *source)
    if x.is_cuda:
        return F.linear(*cast_layer(x, weight, bias))
    trains = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if NARROW_BLAS and torch.compiler.is_compiling():
        if _may_convolve(x, weight) and takes_nodes(x, weight, bias):
            return _NODE(x, weight, bias, trains)
    elif NARROW_BLAS and runs_eagerly(x, weight, bias):
        return _multiply(x, weight, bias, trains)
    return F.linear(x, weight, bias)


class _Recomputing(torch.autograd.Function):
    """Linear layer whose backward computes its input again."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, recipe, *source):
        ctx.recipe = recipe
        ctx.save_for_backward(weight, *source)
        return _multiply(x, weight, bias, True)

    @staticmethod
    def backward(ctx, grad: Tensor):
        weight, x, *parameters = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], False, ctx.needs_input_grad[2]]
        dx, _, dbias = _gradients(grad, x, weight, True, needed)
        dweight = torch.zeros_like(weight, dtype=compute_dtype(weight.dtype))
        rows, tokens, step = grad.flatten(0, -2), x.flatten(0, -2), MIN_IMAGES
        strip = STRIP if x.device.type == 'cpu' else x.numel()
        for part in slices(-(-len(rows) // step), step * x.shape[-1], strip):
            part = slice(step * part.start, step * part.stop)
            hidden = ctx.recipe(tokens[part], *parameters).to(grad.dtype)
            needed = [False, True, False]
            dweight += _gradients(rows[part], hidden, weight, True, needed)[1]
        dweight = dweight.to(weight.dtype)
        return dx, dweight, dbias, None, None, *[None] * len(parameters)


def _may_convolve(x: Tensor, weight: Tensor) -> bool:
    return (
        NARROW_BLAS
        and x.dtype == weight.dtype == torch.float32
        and type(weight) in (Tensor, nn.Parameter)  # others may be quantized
        and x.device.type == 'cpu'
        and not torch.is_autocast_enabled('cpu')
    )


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, trains: bool) -> Tensor:
    if (shape := _image_shape(x, weight, trains)) is None:
        return F.linear(x, weight, bias)
    out = F.conv2d(_images(x, shape), weight[:, :, None, None], bias)
    return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, trains: bool, needed: list[bool]
) -> tuple[Tensor | None, ...]:
    if (shape := _image_shape(x, weight, trains)) is None:
        rows, tokens = grad.flatten(0, -2), x.flatten(0, -2)
        return (
            grad @ weight if needed[0] else None,
            rows.t() @ tokens if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )
    maps = _images(grad, shape), _images(x, shape)
    dx, dweight, dbias = torch.ops.aten.convolution_backward(
        *maps, weight[:, :, None, None], [len(weight)], *CONVOLUTION, needed
    )
    return (
        dx.permute(0, 2, 3, 1).reshape(x.shape) if needed[0] else None,
        dweight.flatten(1) if needed[1] else None,
        dbias,
    )


def _images(x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    return x.reshape(*shape, x.shape[-1]).permute(0, 3, 1, 2)


def _image_shape(
    x: Tensor, weight: Tensor, trains: bool
) -> tuple[int, int, int] | None:
    """Return number, height and width of the images that tokens are laid out as.

    Returns:
        None where `F.linear` is not slower.
    """
    num_tokens, one_thread = x.shape[:-1].numel(), torch.get_num_threads() == 1
    least = LEAST['training' if trains else 'inference']
    if num_tokens < least['tokens_on_one_thread' if one_thread else 'tokens']:
        return None
    if num_tokens * weight.numel() < least['multiplications']:
        return None
    if not _may_convolve(x, weight):
        return None
    if not one_thread:
        return 1, 1, num_tokens
    counts = range(MIN_IMAGES, 2 * MIN_IMAGES + 1)
    count = next((n for n in counts if num_tokens % n == 0), None)
    return None if count is None else (count, num_tokens // count, 1)


def blas_lacks_avx512() -> bool:
    """Return whether oneDNN uses AVX-512 on this CPU and PyTorch's BLAS, MKL, does not.

    MKL chooses by the vendor of the CPU. Both libraries read a limit from the
    environment when they start. An unknown CPU counts as one of Intel.
    """
    onednn = os.environ.get('ONEDNN_MAX_CPU_ISA', '').upper()
    onednn_has_it = (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == 'AVX512'
        and not onednn.startswith(('SSE', 'AVX2'))
        and onednn != 'AVX'
    )
    mkl = os.environ.get('MKL_ENABLE_INSTRUCTIONS', '').upper()
    mkl_lacks_it = torch.backends.mkl.is_available() and (
        mkl.startswith(('SSE', 'AVX2')) or mkl == 'AVX' or 'AuthenticAMD' in _cpu()
    )
    return onednn_has_it and mkl_lacks_it


def _cpu() -> str:
    """Return a description of the CPU that contains its vendor."""
    try:
        with Path('/proc/cpuinfo').open() as file:
            return file.read(2048)  # the first core's entry
    except OSError:
        return platform.processor()


NARROW_BLAS = blas_lacks_avx512()
_NODE = GraphNode(
    'pointwise_linear',
    'bool trains',
    _multiply,
    _gradients,
    lambda x, weight, *_: (*x.shape[:-1], len(weight)),
)
