"""Shared parts of the launchers of Triton kernels.

Kernels are in other files, which import Triton and are imported by the first launch.
"""

import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from mmattn.errors import UserError

from ..common.checks import device_reason, dtype_reason

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'  # read as Triton reads it: once
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
COMPILER = dict(enable_fp_fusion=True, maxnreg=255)  # no spills for occupancy's sake


def reason_without_triton() -> str | None:
    """Return why the installation of Triton is not supported, without importing it."""
    if util.find_spec('triton') is None:
        return 'Triton is not installed (pip install triton)'
    try:
        version = metadata.version('triton')
    except metadata.PackageNotFoundError:
        return None  # PyTorch pins the release of other builds, such as that for ROCm
    if TorchVersion(version) < (3, 6):
        return (
            f'Triton must be 3.6 or newer, got {version}: the compiler of Triton 3.2 '
            'aborts the process on two kernels'
        )
    return None


UNAVAILABLE = reason_without_triton()


class TileTable(dict):
    """Hold sizes of tiles and numbers of warps by the key of a launch.

    Launchers look them up as in a dict. A search learns from `used` which keys a call
    needs, and replaces sizes by `trial`. Sizes that `mmattn tune` keeps for the device
    replace those of the same key.

    Args:
        name: operator and name of the table.
        sizes: tuples of sizes, the last of which is the number of warps.
    """

    def __init__(self, name: str, sizes: Mapping[Any, tuple[int, ...]]):
        super().__init__(sizes)
        self.name, self.used, self.is_tuned = name, set(), False
        TILE_TABLES[name] = self

    def __getitem__(self, key: Any) -> tuple[int, ...]:
        self.used.add(key)
        if not self.is_tuned:
            self.is_tuned = True
            tuned = tiles_of_device().get(self.name, {})
            self.update({k: tuple(tuned[str(k)]) for k in self if str(k) in tuned})
        return super().__getitem__(key)

    @contextmanager
    def trial(self, key: Any, sizes: tuple[int, ...]) -> Iterator[None]:
        """Launch with other sizes for a while."""
        before = self[key]
        self[key] = sizes
        try:
            yield
        finally:
            self[key] = before


TILE_TABLES: dict[str, TileTable] = {}


def tiles_path(device: str) -> Path:
    """Return the file of the tiles that are kept for a device, by its name."""
    cache = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(cache, 'mmattn', 'tiles', f'{device.replace("/", "_")}.json')


def read_tiles(device: str) -> dict[str, dict[str, list[int]]]:
    """Return the tiles that are kept for a device, by table and key.

    Raises:
        ValueError: the file is damaged.
    """
    path = tiles_path(device)
    try:
        tables = json.loads(path.read_text()) if path.is_file() else {}
        for table in tables.values():
            for key, sizes in table.items():
                if not all(type(size) is int and size > 0 for size in sizes):
                    raise ValueError(f'{key} has {sizes!r}')
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f'{path} is damaged: {error}; remove it and run `mmattn tune` again'
        ) from error
    return tables


@functools.cache
def tiles_of_device() -> dict[str, dict[str, list[int]]]:
    """Return the tiles that are kept for the current GPU, none without one."""
    if not torch.cuda.is_available():
        return {}
    return read_tiles(torch.cuda.get_device_name())


def tables_by_dtype(name: str, sizes: Mapping) -> dict[torch.dtype, TileTable]:
    """Return a table for each dtype, `name[dtype]`."""
    return {
        dtype: TileTable(f'{name}[{dtype}]', table) for dtype, table in sizes.items()
    }


def reason(x: Tensor, max_head_width: int) -> str | None:
    """Return why Triton does not support a call with x of shape (..., D), or None."""
    devices = ('cuda', 'cpu') if INTERPRETED else ('cuda',)
    if device := device_reason(x, *devices):
        return device
    if UNAVAILABLE:
        return UNAVAILABLE
    if dtype := dtype_reason(DTYPES, x):
        return dtype
    if x.shape[-1] > max_head_width:
        return f'supports heads of at most {max_head_width} channels, got {x.shape[-1]}'
    return None


def offsets_reason(*tensors: Tensor) -> str | None:
    """Return why offsets in an element of a batch need over 32 bits, or None."""
    for x in tensors:
        sizes = zip(x.shape[1:], x.stride()[1:], strict=True)
        if sum((size - 1) * stride for size, stride in sizes) >= 2**31:
            return f'supports 2**31 numbers of an image, got {tuple(x.shape[1:])}'
    return None


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int, least: int = 1) -> int:
    """Return the smallest power of two of at least n and `least`."""
    return max(least, 1 << (n - 1).bit_length())


def split(
    num_blocks: int, num_programs: int, target: int, most: int | None = None
) -> tuple[int, int]:
    """Split a loop over blocks that each of some programs runs.

    Args:
        num_blocks: blocks of the loop.
        num_programs: programs before the split.
        target: programs to reach, where there are blocks enough.
        most: splits that are allowed, None for any number.

    Returns:
        The number of splits, none of which is empty, and the blocks of a split.
    """
    splits = min(num_blocks, most or num_blocks, max(1, target // num_programs))
    blocks = cdiv(num_blocks, splits)
    return cdiv(num_blocks, blocks), blocks


def strides(*tensors: Tensor) -> list[int]:
    """Return the first three strides of each tensor."""
    return [stride for x in tensors for stride in x.stride()[:3]]


def unit_stride(x: Tensor) -> Tensor:
    """Return x of four dimensions with a contiguous last dimension."""
    return x if x.stride(3) == 1 else x.contiguous()


def empty(like: Tensor, *shape: int) -> Tensor:
    """Return an empty tensor in fp32 on the device of another one."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def zeros(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return contiguous gradients of zero of the tensors that are not None."""
    return tuple(
        None if x is None else torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        for x in tensors
    )


def capability(x: Tensor) -> int:
    """Return the capability whose tiles the device of x takes, 80 or 90."""
    on_gpu = x.device.type == 'cuda'
    return (
        tile_capability(*torch.cuda.get_device_capability(x.device)) if on_gpu else 80
    )


def tile_capability(major: int, minor: int = 0) -> int:
    """Return 90 for sm_9x and sm_10x, and 80 for others.

    sm_12x has the products and the shared memory of sm_8x.
    """
    return 90 if major in (9, 10) else 80


def precision(x: Tensor) -> str:
    """Return the precision of products of operands that are stored like x.

    bfloat16 is multiplied as it is stored, and the others in fp32: fp16 is exact in
    TF32, but small weights are not exact in fp16.
    """
    return 'tf32x3' if x.dtype == torch.float32 else 'tf32'


def is_native(x: Tensor) -> bool:
    """Return whether tensor cores take x as it is stored; the interpreter cannot."""
    return x.dtype == torch.bfloat16 and not INTERPRETED
