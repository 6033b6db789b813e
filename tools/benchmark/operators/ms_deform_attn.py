"""Multi-scale deformable attention of an encoder, beside mmcv's and its definition.

A side belongs to the finest of four maps, each of half the size of the last: 100 x 167
has the 22,223 pixels that Deformable DETR (https://arxiv.org/abs/2010.04159) makes of
an image of 800 x 1333. Each pixel is a query, with 8 heads of 32 channels and 4 points
on each map, some pixels away from its own place as a trained model's are. Points
and weights are in float32. `fused` takes reference points, offsets and logits.
`mmcv (PyTorch)` is the formulation that mmcv has for a CPU, `mmcv (compiled)` its
operator, where it has one.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from mmattn.compat import IMPLEMENTATION
from mmattn.ops import fused_ms_deform_attn, ms_deform_attn

from .case import Case, Grid, backends_of, leaves

OPERATOR = 'ms_deform_attn'
SIDES = '13x21 25x42 50x84 100x167'
BASELINE = 'mmcv (PyTorch)'
DEFINITION = f'{OPERATOR} (definition)'
HEADS, WIDTH, LEVELS, POINTS = 8, 32, 4, 4
SPREAD = 2.0  # standard deviation of a point's distance on each axis, in pixels


def cases(
    grid: Grid, batch: int, device: str, dtype: torch.dtype, queries: int | None = None
) -> list[Case]:
    """Return cases of some queries at random places, or of one at each pixel."""
    maps = [grid]
    while len(maps) < LEVELS:
        maps.append(tuple(-(-length // 2) for length in maps[-1]))
    generator = torch.Generator().manual_seed(0)
    centers = make_centers(maps, queries, generator)  # (Q, 2)
    Q, sizes = len(centers), torch.tensor([(W, H) for H, W in maps])
    shape = batch, Q, HEADS, LEVELS, POINTS
    offsets = SPREAD * torch.randn(*shape, 2, generator=generator)
    # No nearer to a pixel than a tenth: there slopes change, and rounding decides.
    places = (centers[:, None] * sizes)[:, None, :, None] + offsets - 0.5
    inner = 0.1 + 0.8 * torch.rand(places.shape, generator=generator)
    places = places.floor() + inner
    locations = (places + 0.5) / sizes[:, None]
    offsets = places + 0.5 - (centers[:, None] * sizes)[:, None, :, None]
    logits = torch.randn(shape, generator=generator)
    pixels = sum(H * W for H, W in maps)
    value = torch.randn(batch, pixels, HEADS, WIDTH, generator=generator)
    grad = torch.randn(batch, Q, HEADS * WIDTH, generator=generator)
    value, grad = (x.to(device, dtype) for x in (value, grad))
    weights = logits.flatten(3).softmax(-1).view(shape)
    centers = centers.expand(batch, LEVELS, Q, 2).transpose(1, 2).contiguous()
    plain, fused = (
        leaves(x.detach().to(device) for x in (value, *others))
        for others in ((locations, weights), (centers, offsets, logits))
    )
    common = dict(grad=grad, columns={'queries': Q})

    def on(function, backend):
        return lambda value, *others: function(value, maps, *others, backend=backend)

    made = []
    for name in backends_of(OPERATOR, *plain, None):
        method, by_plain = f'{OPERATOR} ({name})', on(ms_deform_attn, name)
        by_fused = on(fused_ms_deform_attn, name)
        made += [
            Case(method, by_plain, plain, same_as=DEFINITION, **common),
            Case(f'{method}, fused', by_fused, fused, **common),
        ]
    definition = on(ms_deform_attn, 'reference')
    made.append(Case(DEFINITION, definition, plain, **common))
    for method, call in mmcv_calls(maps, device).items():
        made.append(Case(method, call, plain, **common))
    return made


def make_centers(
    maps: list[tuple[int, int]], queries: int | None, generator: torch.Generator
) -> Tensor:
    """Return the places of queries in the image, (x, y) in [0, 1], shape (Q, 2)."""
    if queries is not None:
        return torch.rand(queries, 2, generator=generator)
    centers = [
        torch.cartesian_prod((torch.arange(H) + 0.5) / H, (torch.arange(W) + 0.5) / W)
        for H, W in maps
    ]
    return torch.cat(centers).flip(-1)


def mmcv_calls(maps, device: str) -> dict[str, Callable[..., Tensor]]:
    """Return mmcv's methods, which give points and weights value's dtype."""
    # mmcv requires OpenCV, which a kit for GPUs lacks.
    if any(importlib.util.find_spec(name) is None for name in ('mmcv', 'cv2')):
        return {}
    module = importlib.import_module('mmcv.ops.multi_scale_deform_attn')
    # `mmattn.compat` may have put our operator in its place.
    formulation = inspect.unwrap(module.multi_scale_deformable_attn_pytorch)
    calls = {
        BASELINE: lambda value, *others: formulation(
            value, maps, *(x.to(value.dtype) for x in others)
        )
    }
    extension = importlib.import_module('mmcv._ext')
    if device == 'cuda' and extension.__spec__.origin != IMPLEMENTATION:
        shapes = torch.tensor(maps, device=device)
        starts = shapes.prod(1).cumsum(0) - shapes.prod(1)
        calls['mmcv (compiled)'] = lambda value, *others: (
            module.MultiScaleDeformableAttnFunction.apply(
                value, shapes, starts, *others, 64
            )
        )
    return calls
