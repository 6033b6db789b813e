"""Time backbones in PyTorch, ONNX Runtime and OpenVINO, in float32, bfloat16 and int8.

    OMP_NUM_THREADS=1 python -m tools.benchmark.runtimes --clock cpu \\
        --csv docs/benchmarks/runtimes_cpu.csv

Weights and images are random. What runs a backbone takes turns, one at a time (see
`measure.py`). `speedup` is the speed over PyTorch's in float32, and `difference` the
largest one from its maps, over their largest value. ONNX Runtime has no products in
bfloat16 on CPUs. The file in int8 is quantized as by `mmattn export --int8`, which
leaves attention in float32, and OpenVINO reads it, too. A network that a program
refuses has no row for it.
"""

import argparse
import copy
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from mmattn.cli.terminal import run_main
from mmattn.export.int8 import quantize
from tools.benchmark import measure
from tools.benchmark.model import create

MODELS = (
    'mmattn_ivit_tiny mmattn_hmait_tiny mmattn_lisanet_hybrid_small mmattn_pvt_v2_b2 '
    'mmattn_dat_plus_plus_tiny swin_tiny_patch4_window7_224 convnext_tiny'
)
QUICK_SIZE = 64
CALIBRATIONS = 4
BASELINE = 'PyTorch float32'


def in_pytorch(model: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], list]:
    model = copy.deepcopy(model).to(dtype, memory_format=torch.channels_last)

    def run(images: Tensor) -> list[np.ndarray]:
        images = images.to(dtype, memory_format=torch.channels_last)
        with torch.no_grad():
            return [out.float().numpy() for out in model(images)]

    return run


def in_onnx_runtime(content: bytes) -> Callable[[Tensor], list]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options)
    (name,) = (each.name for each in session.get_inputs())
    return lambda images: session.run(None, {name: images.numpy()})


def in_openvino(content: bytes, dtype: str) -> Callable[[Tensor], list]:
    import openvino

    core = openvino.Core()
    settings = dict(
        INFERENCE_PRECISION_HINT=dtype, INFERENCE_NUM_THREADS=torch.get_num_threads()
    )
    compiled = core.compile_model(core.read_model(content), 'CPU', settings)
    return lambda images: [*compiled([images.numpy()]).values()]


def ways(model: nn.Module, images: Tensor) -> dict[str, Callable[[Tensor], list]]:
    """Return what runs a model, by library and type."""
    with torch.no_grad():
        program = torch.onnx.export(model, (images,), dynamo=True, verbose=False)
    content = program.model_proto.SerializeToString()
    inputs = torch.randn(CALIBRATIONS, *images.shape).numpy()
    int8 = quantize(content, iter([[x] for x in inputs]))
    makers = {
        BASELINE: partial(in_pytorch, model, torch.float32),
        'PyTorch bfloat16': partial(in_pytorch, model, torch.bfloat16),
        'ONNX Runtime float32': partial(in_onnx_runtime, content),
        'ONNX Runtime int8': partial(in_onnx_runtime, int8),
        'OpenVINO float32': partial(in_openvino, content, 'f32'),
        'OpenVINO bfloat16': partial(in_openvino, content, 'bf16'),
        'OpenVINO int8': partial(in_openvino, int8, 'f32'),
    }
    made = {}
    for way, make in makers.items():
        try:
            made[way] = make()
        except RuntimeError as error:
            measure.progress(f'{way} refuses it: {error}')
    return made


def rows(args: argparse.Namespace) -> Iterator[dict]:
    for name in args.models:
        measure.progress(name)
        torch.manual_seed(0)
        model = create(name, args.size, maps=True).eval()
        images = torch.randn(1, 3, *args.size)
        runs = ways(model, images)
        calls = {way: partial(run, images) for way, run in runs.items()}
        expected = runs[BASELINE](images)
        times = measure.interleave(calls, args.rounds, args.seconds, args.clock)
        for way, run in runs.items():
            pairs = zip(expected, run(images), strict=True)
            difference = max(abs(x - y).max() / abs(x).max() for x, y in pairs)
            yield {
                'model': name,
                'runtime': way,
                'ms': measure.rounded(1000 * times[way].median),
                **times[way].columns(times[BASELINE]),
                'difference': measure.rounded(float(difference), 2),
            }


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, rounds=3, seconds=0.5, device=None)
    parser.add_argument('--models', nargs='+', default=MODELS.split())
    measure.add_size(parser, [512, 768])
    measure.add_clock(parser)
    args = measure.parse(parser, argv)
    if args.quick:
        args.size, args.models = (QUICK_SIZE, QUICK_SIZE), ['mmattn_ivit_nano']
    measure.report(
        rows(args),
        args,
        'timm',
        'onnxruntime',
        'openvino',
        title='Runtimes',
        size=measure.size_text(args.size),
        clock=args.clock,
    )
    return 0


if __name__ == '__main__':
    run_main(main)
