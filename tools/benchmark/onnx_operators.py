"""Time operators of exported graphs in ONNX Runtime beside ONNX's own.

    python -m tools.benchmark.onnx_operators --csv onnx_operators.csv

Multi-scale deformable attention gathers pixels, and deformable attention v2 reads its
bias by products with matrices; ONNX has `GridSample`. Structure-aware attention
transforms maps by products with real matrices; ONNX has `DFT`. Both forms of a case,
and what PyTorch runs by itself, get the same random inputs and take turns.

`speedup` is the speed over ONNX's operator. `error` is the largest difference from
PyTorch in float64, relative to its largest value. Our form must be as exact as the
tests require of an operator; the others may be less exact.
"""

import argparse
import io
from collections.abc import Callable, Iterator, Sequence

import onnx
import torch
from torch import Tensor, nn

from mmattn.cli.terminal import run_main
from mmattn.export.write import OPSET, difference, open_session
from mmattn.ops import deformable_attention, ms_deform_attn
from mmattn.ops.structure_aware_attention.real_transforms import rfft_parts
from tools.benchmark import measure
from tools.benchmark.inputs import make_deformable_inputs, make_ms_deform_inputs
from tools.benchmark.tolerances import assert_close

STRIDES = 8, 16, 32, 64
IMAGES = (800, 1333), (400, 666)
QUERIES = 300  # of a decoder; an encoder has one for each pixel
SHAPE = dict(B=1, M=8, D=32, P=4)
GRIDS = (56, 56), (64, 64), (200, 334), (256, 256), (1024, 1024)
MAPS = 16
# The map, keys, heads, groups and table of a stage, and whether queries lie at the
# corners: DAT-T and DAT++-T at 224, and DAT++-T at 800 x 1333.
STAGES = (
    dict(grid=(14, 14), K=196, M=12, G=3, table_size=(27, 27), align_corners=False),
    dict(grid=(56, 56), K=49, M=2, G=1, table_size=(111, 111), align_corners=True),
    dict(grid=(14, 14), K=49, M=8, G=4, table_size=(27, 27), align_corners=True),
    dict(grid=(50, 84), K=1050, M=8, G=4, table_size=(27, 27), align_corners=True),
)
QUICK = dict(images=((64, 96),), grids=((12, 10),), stages=STAGES[2:3])
OURS, ONNX, TORCH = 'exported', 'of ONNX', 'PyTorch'
DFT = """
<ir_version: 9, opset_import: ["" : 20]>
transform (float[N, H, W, 1] maps) => (float[N, H, F, 2] spectra) {
    rows = Constant <value_int = 1> ()
    columns = Constant <value_int = 2> ()
    half = DFT <onesided = 1> (maps, , columns)
    spectra = DFT (half, , rows)
}
"""


class Operator(nn.Module):
    """Call an operator with one of its backends."""

    def __init__(self, call: Callable[..., Tensor], backend: str | None):
        super().__init__()
        self.call, self.backend = call, backend

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.call(*tensors, backend=self.backend)


class Transform(nn.Module):
    """Half-spectra of maps (N, H, W) as real products, shape (N, H, W // 2 + 1, 2)."""

    def forward(self, maps: Tensor) -> Tensor:
        return rfft_parts(maps, tuple(maps.shape[1:])).movedim(1, -1)


def exported(module: nn.Module, *tensors: Tensor) -> Callable[..., list[Tensor]]:
    """Return a function that runs a module in ONNX Runtime."""
    file = io.BytesIO()
    torch.onnx.export(
        module.eval(), tensors, file, dynamo=True, opset_version=OPSET, verbose=False
    )
    return open_session(file.getvalue(), 'onnx')


def forms_of(
    call: Callable[..., Tensor], tensors: Sequence[Tensor]
) -> tuple[dict[str, Callable], Tensor]:
    """Return the forms of an operator whose definition samples by `grid_sample`."""
    backends = {OURS: None, ONNX: 'reference'}
    runs = {
        form: exported(Operator(call, backend), *tensors)
        for form, backend in backends.items()
    }
    calls = {form: lambda run=run: run(*tensors)[0] for form, run in runs.items()}
    calls[TORCH] = lambda: call(*tensors, backend=None)
    return calls, call(*(x.double() for x in tensors), backend='reference')


def attention(
    queries: int | None, image: tuple[int, int]
) -> tuple[dict[str, Callable], Tensor]:
    """Return the forms of attention on the maps of an image, and the exact result."""
    shapes = [tuple(-(-side // stride) for side in image) for stride in STRIDES]
    Q = queries or sum(H * W for H, W in shapes)
    tensors = make_ms_deform_inputs(shapes=shapes, Q=Q, **SHAPE)

    def call(value, points, weights, backend):
        return ms_deform_attn(value, shapes, points, weights, backend=backend)

    return forms_of(call, tensors[:3])


def attention_v2(
    *, grid: tuple[int, int], align_corners: bool, **sizes
) -> tuple[dict[str, Callable], Tensor]:
    """Return the forms of attention to keys that queries share, and the result."""
    tensors = make_deformable_inputs(grid=grid, B=1, D=32, **sizes)

    def call(q, k, v, positions, table, backend):
        return deformable_attention(
            *(q, k, v, grid, positions, table),
            align_corners=align_corners,
            backend=backend,
        )

    return forms_of(call, tensors)


def transform(grid: tuple[int, int]) -> tuple[dict[str, Callable], Tensor]:
    """Return the forms of a transform over both sides, and the exact result."""
    maps = torch.randn(MAPS, *grid, generator=torch.Generator().manual_seed(0))
    ours = exported(Transform(), maps)
    model = onnx.parser.parse_model(DFT)
    onnx.checker.check_model(model)
    dft = open_session(model.SerializeToString(), 'onnx')
    calls = {
        OURS: lambda: ours(maps)[0],
        ONNX: lambda: dft(maps[..., None])[0],
        TORCH: lambda: torch.view_as_real(torch.fft.rfft2(maps)),
    }
    return calls, torch.view_as_real(torch.fft.rfft2(maps.double()))


def cases(
    args: argparse.Namespace,
) -> Iterator[tuple[str, dict[str, Callable], Tensor]]:
    """Yield the name of each case, its forms and the exact result."""
    for name, queries in (('encoder', None), ('decoder', QUERIES)):
        for H, W in args.images:
            title = f'ms_deform_attn, {name}, {H} x {W}'
            yield title, *attention(queries, (H, W))
    for stage in args.stages:
        H, W = stage['grid']
        title = f'deformable_attention, {H} x {W}, {stage["M"]} x {stage["K"]} keys'
        yield title, *attention_v2(**stage)
    for H, W in args.grids:
        yield f'transform, {MAPS} maps of {H} x {W}', *transform((H, W))


def rows(args: argparse.Namespace) -> Iterator[dict]:
    """Yield a row of each form of each case.

    Raises:
        AssertionError: the result of our form is wrong.
    """
    for name, forms, exact in cases(args):
        measure.progress(name)
        outputs = {form: call().double() for form, call in forms.items()}
        assert_close(f'{name}, {OURS}', exact, outputs[OURS], torch.float32)
        times = measure.interleave(forms, rounds=args.rounds, seconds=args.seconds)
        for form, timing in times.items():
            yield {
                'case': name,
                'form': form,
                'ms': measure.rounded(1e3 * timing.median),
                **timing.columns(times[ONNX]),
                'error': measure.rounded(difference(outputs[form], exact), 2),
            }


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, rounds=5, seconds=0.5, device=None)
    args = measure.parse(parser, argv)
    sizes = QUICK if args.quick else dict(images=IMAGES, grids=GRIDS, stages=STAGES)
    vars(args).update(sizes)
    title = 'Operators in ONNX Runtime'
    measure.report(rows(args), args, 'onnxruntime', title=title, dtype='float32')
    return 0


if __name__ == '__main__':
    run_main(main)
