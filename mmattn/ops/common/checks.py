"""Checks that operators share, each with one wording of its error.

`check_*` raise a ValueError about arguments that no backend accepts. `*_reason` return
why a backend does not support a call, or None.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmattn.errors import UserError

# The oldest GPU that multiplies TF32 and bfloat16 by tensor cores, and that has
# the shared memory of our tiles. The CUDA kernels are compiled for it and newer ones.
MIN_CAPABILITY = 8, 0


def check_dims(name: str, tensor: Tensor, count: int) -> torch.Size:
    """Return the shape of a floating-point tensor of `count` dimensions."""
    if tensor.dim() != count or not tensor.is_floating_point():
        raise UserError(
            f'`{name}` must be a floating-point tensor of {count} dimensions, got '
            f'{tuple(tensor.shape)} of {dtype_name(tensor.dtype)}'
        )
    return tensor.shape


def check_shape(name: str, tensor: Tensor | None, shape: Sequence[int]):
    """Check the shape of a tensor that is not None."""
    if tensor is not None and tensor.shape != tuple(shape):
        raise UserError(
            f'`{name}` must have shape {tuple(shape)}, got {tuple(tensor.shape)}'
        )


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> torch.Size:
    """Return the shape (B, N, M, D) that q, k and v have in common."""
    if q.dim() != 4 or k.shape != q.shape or v.shape != q.shape:
        raise UserError(
            '`q`, `k` and `v` must have one shape (B, N, M, D), got '
            f'{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}'
        )
    B, N, M, D = q.shape
    check_not_empty(N=N, M=M, D=D)
    check_one_dtype(q=q, k=k, v=v)
    return q.shape


def check_not_empty(**sizes: int):
    """Check that sizes, given by their letters, are positive."""
    if 0 in sizes.values():
        got = ', '.join(f'{letter}={size}' for letter, size in sizes.items())
        raise UserError(f'only the batch may be empty, got {got}')


def check_one_dtype(**tensors: Tensor):
    """Check that tensors, given by their names, have one floating-point dtype."""
    dtypes = [x.dtype for x in tensors.values()]
    if len(set(dtypes)) > 1 or not dtypes[0].is_floating_point:
        *names, last = (f'`{name}`' for name in tensors)
        raise UserError(
            f'{", ".join(names)} and {last} must have one floating-point dtype, got '
            f'{[dtype_name(dtype) for dtype in dtypes]}'
        )


def check_one_device(*tensors: Tensor | None):
    """Check that all tensors that are not None are on one device."""
    devices = {str(x.device) for x in tensors if x is not None}
    if len(devices) > 1:
        raise UserError(f'all tensors must be on one device, got {sorted(devices)}')


def device_reason(tensor: Tensor, *device_types: str) -> str | None:
    """Return why a backend for these types of devices does not support a tensor."""
    if tensor.device.type not in device_types:
        devices = 'CUDA devices' if 'cuda' in device_types else 'the CPU'
        return f'runs on {devices}, got tensors on {tensor.device}'
    # Tensors of a GPU that is not there are fake. ROCm counts capabilities differently.
    if (
        tensor.device.type != 'cuda'
        or torch.version.hip
        or not torch.cuda.is_available()
    ):
        return None
    gpu = torch.cuda.get_device_properties(tensor.device)
    if (gpu.major, gpu.minor) < MIN_CAPABILITY:
        least = '.'.join(map(str, MIN_CAPABILITY))
        return (
            f'requires a GPU of compute capability {least} or newer, '
            f'got {gpu.name} of {gpu.major}.{gpu.minor}'
        )
    return None


def dtype_reason(dtypes: Sequence[torch.dtype], *tensors: Tensor | None) -> str | None:
    """Return why a backend for these dtypes does not support tensors."""
    for x in tensors:
        if x is not None and x.dtype not in dtypes:
            *names, last = map(dtype_name, dtypes)
            supported = f'{", ".join(names)} and {last}'
            return f'supports {supported}, got {dtype_name(x.dtype)}'
    return None


def dtype_name(dtype: torch.dtype) -> str:
    """Return 'float32' for `torch.float32`."""
    return str(dtype).removeprefix('torch.')
