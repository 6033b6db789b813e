"""Time exported models in ONNX Runtime, and the same models in PyTorch.

    python tools/benchmark/onnx_model.py --csv docs/benchmarks/onnx_models_cpu.csv

Models are named, built and initialized as in `model.py`. Each is exported by
`torch.onnx.export` and run in evaluation mode, with random images. All take turns, in
both runtimes. In PyTorch each gets the memory format that is faster for it.
`difference` is the largest one between the scores of the two runtimes, relative to the
largest score. `speedup` is the speed over that of the baseline in the same runtime, and
`over_pytorch` the speed over that of the same model in PyTorch.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import measure
import onnxruntime
import torch
from model import BASELINE, QUICK_SIZE, Workload, create, fastest_format

MODELS = [
    'ivit_t',
    'pvtv2_b2',
    'swin_tiny_patch4_window7_224',
    'convnext_tiny',
    'pvt_v2_b2',
]
OPSET = 20
PYTORCH, ONNX = 'PyTorch', 'ONNX Runtime'


class OnnxWorkload:
    """An exported model in ONNX Runtime, and its images."""

    def __init__(self, workload: Workload, file: Path):
        if not file.is_file():
            torch.onnx.export(
                workload.model,
                (workload.images,),
                file,
                dynamo=True,
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(
            file, options, providers=['CPUExecutionProvider']
        )
        self.feed = {self.session.get_inputs()[0].name: workload.images.numpy()}

    def __call__(self) -> torch.Tensor:
        return torch.from_numpy(self.session.run(None, self.feed)[0])


def rows(args: argparse.Namespace, folder: Path) -> Iterator[dict]:
    calls, differences = {}, {}
    for name in args.models:
        measure.progress(name)
        torch.manual_seed(0)  # the weights of a file that is used again
        workload = Workload(create(name, args.size), args)
        workload.prepare('inference', 'contiguous')
        exported = OnnxWorkload(
            workload, folder / f'{name}_{args.size}_{args.batch}.onnx'
        )
        with torch.no_grad():
            expected = workload.model(workload.images)
        differences[name] = ((exported() - expected).abs().max()) / expected.abs().max()
        if args.export_only:
            continue
        best = fastest_format(workload, 'inference', args.seconds)
        workload.prepare('inference', best)
        calls[name, PYTORCH], calls[name, ONNX] = workload.inference, exported
    if args.export_only:
        return
    measure.progress('all in turns')
    times = measure.interleave(calls, rounds=args.rounds, seconds=args.seconds)
    for name, runtime in calls:
        timing = times[name, runtime]
        row = {
            'model': name,
            'pass': runtime,
            'images_per_s': measure.rounded(args.batch / timing.median),
            'spread_percent': measure.rounded(100 * timing.spread, 2),
            'speedup': '',
            'over_pytorch': '',
            'difference': '',
        }
        if args.baseline in args.models:
            speedup = timing.speedup_over(times[args.baseline, runtime])
            row['speedup'] = measure.rounded(speedup, 3)
        if runtime == ONNX:
            speedup = timing.speedup_over(times[name, PYTORCH])
            row['over_pytorch'] = measure.rounded(speedup, 3)
            row['difference'] = measure.rounded(differences[name].item(), 2)
        yield row


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=5, seconds=0.5)
    parser.add_argument('--models', nargs='+', default=MODELS)
    parser.add_argument('--baseline', default=BASELINE, help=f'default: {BASELINE}')
    parser.add_argument('--size', type=int, default=224, help='side of the images')
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument(
        '--files', type=Path, help='folder to keep exported files in and to use again'
    )
    parser.add_argument(
        '--export-only', action='store_true', help='fill --files, and measure nothing'
    )
    parser.set_defaults(compile=False, amp_dtype=None)
    args = measure.parse(parser, argv)
    if args.export_only and args.files is None:
        parser.error('--export-only requires --files')
    if args.device != 'cpu':
        parser.error('--device must be cpu: ONNX Runtime runs on the CPU here')
    if args.quick:
        args.size = QUICK_SIZE
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        with tempfile.TemporaryDirectory() as folder:
            folder = args.files or Path(folder)
            folder.mkdir(parents=True, exist_ok=True)
            measured = list(rows(args, folder))
    except ValueError as error:
        sys.exit(f'onnx_model: {error}')
    if args.export_only:
        return 0
    about = measure.about(
        'cpu',
        'timm',
        'onnxruntime',
        size=args.size,
        batch=args.batch,
        dtype='float32',
        baseline=args.baseline,
        rounds=args.rounds,
        seconds=args.seconds,
    )
    measured.sort(key=lambda row: row['pass'])
    measure.report(measured, about, args.csv, title=f'{args.size} x {args.size}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
