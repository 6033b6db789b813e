"""Time operators of exported graphs in ONNX Runtime beside ONNX's own.

    python tools/benchmark/onnx_operators.py

Multi-scale deformable attention gathers pixels; ONNX has `GridSample`. Structure-aware
attention transforms maps by products with real matrices; ONNX has `DFT`. Both forms of
a case, and what PyTorch runs by itself, get the same random inputs. Their results are
compared, and they take turns. `speedup` is the speed over ONNX's operator.
"""

import argparse
import io
import sys
from collections.abc import Callable, Iterator

import measure
import onnx
import torch
from torch import Tensor, nn

from mmattn.export.write import OPSET, open_session
from mmattn.ops import ms_deform_attn
from mmattn.ops.structure_aware_attention.real_transforms import rfft_parts
from mmattn.ops.testing import assert_close, make_ms_deform_inputs

STRIDES = 8, 16, 32, 64
IMAGES = (800, 1333), (400, 666)
QUERIES = 300  # of a decoder; an encoder has one for each pixel
SHAPE = dict(B=1, M=8, D=32, P=4)
GRIDS = (56, 56), (64, 64), (200, 334), (256, 256), (1024, 1024)
MAPS = 16
QUICK = dict(images=((64, 96),), grids=((12, 10),))
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


class Attention(nn.Module):
    """Multi-scale deformable attention; the definition samples by `grid_sample`."""

    def __init__(self, shapes: list[tuple[int, int]], backend: str | None):
        super().__init__()
        self.shapes, self.backend = shapes, backend

    def forward(self, value: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        return ms_deform_attn(value, self.shapes, points, weights, backend=self.backend)


class Transform(nn.Module):
    """Half-spectra of maps (N, H, W) as real products, shape (N, H, W // 2 + 1, 2)."""

    def forward(self, maps: Tensor) -> Tensor:
        return rfft_parts(maps, tuple(maps.shape[1:])).movedim(1, -1)


def exported(module: nn.Module, *tensors: Tensor) -> Callable[..., list[Tensor]]:
    """Return a function that runs a module in ONNX Runtime."""
    file = io.BytesIO()
    torch.onnx.export(
        module, tensors, file, dynamo=True, opset_version=OPSET, verbose=False
    )
    return open_session(file.getvalue(), 'onnx')


def attention(queries: int | None, image: tuple[int, int]) -> dict[str, Callable]:
    """Return the forms of deformable attention on the maps of an image."""
    shapes = [tuple(-(-side // stride) for side in image) for stride in STRIDES]
    Q = queries or sum(H * W for H, W in shapes)
    tensors = [
        x for x in make_ms_deform_inputs(shapes=shapes, Q=Q, **SHAPE) if x is not None
    ]
    backends = {OURS: None, ONNX: 'reference'}
    runs = {
        form: exported(Attention(shapes, backend), *tensors)
        for form, backend in backends.items()
    }
    calls = {form: lambda run=run: run(*tensors)[0] for form, run in runs.items()}
    return calls | {TORCH: lambda: Attention(shapes, None)(*tensors)}


def transform(grid: tuple[int, int]) -> dict[str, Callable]:
    """Return the forms of a transform over both sides of maps."""
    maps = torch.randn(MAPS, *grid, generator=torch.Generator().manual_seed(0))
    ours = exported(Transform(), maps)
    model = onnx.parser.parse_model(DFT)
    onnx.checker.check_model(model)
    dft = open_session(model.SerializeToString(), 'onnx')
    return {
        OURS: lambda: ours(maps)[0],
        ONNX: lambda: dft(maps[..., None])[0],
        TORCH: lambda: torch.view_as_real(torch.fft.rfft2(maps)),
    }


def cases(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Callable]]]:
    for name, queries in (('encoder', None), ('decoder', QUERIES)):
        for H, W in args.images:
            title = f'ms_deform_attn, {name}, {H} x {W}'
            yield title, attention(queries, (H, W))
    for H, W in args.grids:
        yield f'transform, {MAPS} maps of {H} x {W}', transform((H, W))


def rows(args: argparse.Namespace) -> Iterator[dict]:
    for name, forms in cases(args):
        measure.progress(name)
        for form in (OURS, ONNX):
            assert_close(f'{name}, {form}', forms[TORCH](), forms[form]())
        times = measure.interleave(forms, rounds=args.rounds, seconds=args.seconds)
        for form, timing in times.items():
            yield {
                'case': name,
                'operator': form,
                'ms': measure.rounded(1e3 * timing.median),
                'spread_percent': measure.rounded(100 * timing.spread, 2),
                'speedup': measure.rounded(timing.speedup_over(times[ONNX]), 3),
            }


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, rounds=5, seconds=0.5)
    args = measure.parse(parser, argv)
    if args.device != 'cpu':
        parser.error('--device must be cpu: ONNX Runtime runs on the CPU here')
    sizes = QUICK if args.quick else dict(images=IMAGES, grids=GRIDS)
    vars(args).update(sizes)
    measured = list(rows(args))
    about = measure.about('cpu', 'onnxruntime', dtype='float32', rounds=args.rounds)
    measure.report(measured, about, args.csv, title='Operators in ONNX Runtime')
    return 0


if __name__ == '__main__':
    sys.exit(main())
