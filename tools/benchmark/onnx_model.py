"""Time exported models in ONNX Runtime, and the same models in PyTorch.

    python -m tools.benchmark.onnx_model --csv docs/benchmarks/onnx_models_cpu.csv
    python -m tools.benchmark.onnx_model --set detectors --rounds 2 \
        --memory-format channels_last --csv docs/benchmarks/onnx_detectors_cpu.csv

Classifiers are named, built and initialized as in `model.py`. Detectors are named by
their configs; they are two-stage detectors with post-processing and random weights, of
which 500 boxes enter the last NMS (`detector_graphs.py`). A trained detector may need
more or less time for that.

Each model is exported as `tools/export.py` does and run in evaluation mode, with a
random image. All take turns, in both runtimes. In PyTorch each gets the memory format
that is faster for it, or that of --memory-format. A detector is the same graph in both
runtimes, so that mmdet's pasting of masks is in neither.

`difference` is the largest one between the scores of the two runtimes, relative to the
largest score. `speedup` is the speed over that of the baseline in the same runtime, and
`over_pytorch` the speed over that of the same model in PyTorch.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from mmattn.export import Metadata
from mmattn.export.write import export_program, open_session, serialize
from mmattn.terminal import positive, run_main
from tools.benchmark import measure
from tools.benchmark.detector_graphs import DetectorWorkload
from tools.benchmark.model import FORMATS, Workload, create, fastest_format

DETECTORS = measure.ROOT / 'configs/mask_rcnn'
SETS = {
    'classifiers': dict(
        models=[
            *('ivit_t', 'hylisanet_s', 'lisanet_s', 'hmait_t', 'mait_xs'),
            *('dat_t', 'datpp_t', 'pvtv2_b2'),
            *('swin_tiny_patch4_window7_224', 'convnext_tiny', 'pvt_v2_b2'),
        ],
        baseline='swin_tiny_patch4_window7_224',
        size=[224],
    ),
    'detectors': dict(
        models=[
            str(DETECTORS / 'ivit_t_3x_coco.py'),
            'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
            'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
        ],
        baseline='mask-rcnn_swin-t-p4-w7_fpn_1x_coco',
        size=[800, 1333],
    ),
}
QUICK_SIZE = 64
PYTORCH, ONNX = 'PyTorch', 'ONNX Runtime'


class ClassifierWorkload(Workload):
    """A classifier and its images."""

    def __init__(self, name: str, args: argparse.Namespace):
        size = args.size[0]
        torch.manual_seed(0)  # the weights of a file that is used again
        settings = argparse.Namespace(**vars(args) | dict(size=size))
        super().__init__(create(name, size).requires_grad_(False), settings)
        self.prepare('inference', 'contiguous')

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.images,)

    @torch.no_grad()
    def inference(self) -> list[Tensor]:
        return [self.model(self.images)]

    @staticmethod
    def scores(outputs: list[Tensor]) -> Tensor:
        return outputs[0]


class OnnxWorkload:
    """An exported model in ONNX Runtime, and its inputs."""

    def __init__(self, workload: ClassifierWorkload | DetectorWorkload, file: Path):
        self.inputs = workload.inputs
        if not file.is_file():
            file.write_bytes(content_of(workload))
        self.session = open_session(file.read_bytes(), 'onnx')

    def __call__(self) -> list[Tensor]:
        return self.session(*self.inputs)


def content_of(workload: ClassifierWorkload | DetectorWorkload) -> bytes:
    """Return an ONNX file with the model of a workload."""
    image = workload.inputs[0]
    names = getattr(workload.model, 'input_names', ['image'])
    outputs = getattr(workload.model, 'output_names', ['scores'])
    task = getattr(workload.model, 'task', 'classification')
    metadata = Metadata(task, list(names), list(outputs), list(image.shape[2:]))
    program = export_program(workload.model, workload.inputs)
    return serialize(program, metadata, 'onnx')


def sides(args: argparse.Namespace) -> tuple[int, int]:
    """Return height and width of the images; one number is that of both."""
    return args.size[0], args.size[-1]


def workload_of(name: str, args: argparse.Namespace):
    """Build a model by its name, which ends with .py for a detector."""
    if not name.endswith('.py'):
        return ClassifierWorkload(name, args)
    return DetectorWorkload(name, sides(args))


def rows(args: argparse.Namespace, folder: Path) -> Iterator[dict]:
    calls, differences = {}, {}
    size = 'x'.join(map(str, sides(args)))
    for name in args.models:
        workload, name = workload_of(name, args), Path(name).stem
        measure.progress(name)
        exported = OnnxWorkload(workload, folder / f'{name}_{size}_{args.batch}.onnx')
        expected = workload.scores(workload.inference())
        found = (workload.scores(exported()) - expected).abs().max()
        differences[name] = (found / expected.abs().max()).item()
        if args.export_only:
            continue
        chosen = args.memory_format
        if chosen == 'best':
            chosen = fastest_format(workload, 'inference', args.seconds)
        workload.prepare('inference', chosen)
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
        if (args.baseline, runtime) in times:
            speedup = timing.speedup_over(times[args.baseline, runtime])
            row['speedup'] = measure.rounded(speedup, 3)
        if runtime == ONNX:
            speedup = timing.speedup_over(times[name, PYTORCH])
            row['over_pytorch'] = measure.rounded(speedup, 3)
            row['difference'] = measure.rounded(differences[name], 2)
        yield row


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=5, seconds=0.5)
    parser.add_argument('--set', default='classifiers', choices=SETS)
    parser.add_argument('--models', nargs='+', help='default: those of the set')
    parser.add_argument('--baseline', help='default: that of the set')
    parser.add_argument(
        '--size',
        nargs='+',
        type=positive,
        help='a side, or height and width of images for detectors; default: that of '
        'the set',
    )
    parser.add_argument('--batch', type=positive, default=1, help='of classifiers')
    parser.add_argument(
        '--memory-format',
        default='best',
        choices=['best', *FORMATS],
        help='in PyTorch; by default the faster one of each model',
    )
    parser.add_argument(
        '--files', type=Path, help='folder to keep exported files in and to use again'
    )
    parser.add_argument(
        '--export-only', action='store_true', help='fill --files, and measure nothing'
    )
    parser.set_defaults(compile=False, amp_dtype=None)
    args = measure.parse(parser, argv)
    if args.quick and args.size is None:
        args.size = [QUICK_SIZE]
    for name, value in SETS[args.set].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.export_only and args.files is None:
        parser.error('--export-only requires --files')
    if args.device != 'cpu':
        parser.error('--device must be cpu: ONNX Runtime runs on the CPU here')
    detectors = sum(name.endswith('.py') for name in args.models)
    if detectors not in (0, len(args.models)):
        parser.error('--models must be all classifiers or all detectors')
    if detectors and args.batch != 1:
        parser.error(f'--batch must be 1 for detectors, got {args.batch}')
    if len(args.size) > 1 + bool(detectors):
        parser.error(
            f'--size must be a side, or for detectors two sides, got {args.size}'
        )
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        folder = args.files or Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        measured = list(rows(args, folder))
    if args.export_only:
        return 0
    height, width = sides(args)
    about = measure.about(
        'cpu',
        'timm',
        'onnxruntime',
        size=height if height == width else f'{height} x {width}',
        batch=args.batch,
        dtype='float32',
        baseline=args.baseline,
        memory_format=args.memory_format,
        rounds=args.rounds,
        seconds=args.seconds,
    )
    measured.sort(key=lambda row: row['pass'])
    measure.report(measured, about, args.csv, title=f'{height} x {width}')
    return 0


if __name__ == '__main__':
    run_main(main)
