"""Time exported models in ONNX Runtime, and the same models in PyTorch.

    python -m tools.benchmark.onnx_model --csv docs/benchmarks/onnx_models_cpu.csv
    python -m tools.benchmark.onnx_model --set detectors --rounds 2 \
        --memory-format channels_last --csv docs/benchmarks/onnx_detectors_cpu.csv

Classifiers are named, built and initialized as in `model.py`. Detectors are named by
their configs; they are two-stage detectors with post-processing and random weights, of
which 500 boxes enter the last NMS (`detector_graphs.py`). A trained detector may need
more or less time for that.

Each model is exported as `mmattn export` does and run in evaluation mode, with a
random image. All take turns, in both runtimes. In PyTorch each gets the memory format
that is faster for it, or the one of --memory-format. A detector is the same graph in
both runtimes, so that mmdet's pasting of masks is in neither.

`difference` is the largest one between the scores of the two runtimes, relative to the
largest score. `speedup` is the speed over the baseline's in the same runtime, and
`over_pytorch` the speed over the same model's in PyTorch.
"""

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from mmattn.cli.terminal import positive, run_main
from mmattn.export import Metadata
from mmattn.export.write import export_program, open_session, serialize
from tools.benchmark import measure
from tools.benchmark.detector_graphs import DetectorWorkload
from tools.benchmark.model import (
    Workload,
    add_memory_format,
    create,
    fastest_format,
)

DETECTORS = measure.ROOT / 'configs/mask_rcnn'
SETS = {
    'classifiers': dict(
        models=[
            *('ivit_t', 'lisanet_hybrid_s', 'lisanet_s', 'hmait_t', 'mait_xs'),
            *('dat_t', 'dat_plus_plus_t', 'pvt_v2_b2'),
            *('swin_tiny_patch4_window7_224', 'convnext_tiny', 'timm://pvt_v2_b2'),
        ],
        baseline='swin_tiny_patch4_window7_224',
        size=(224, 224),
    ),
    'detectors': dict(
        models=[
            str(DETECTORS / 'ivit_t_3x_coco.py'),
            'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
            'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
        ],
        baseline='mask-rcnn_swin-t-p4-w7_fpn_1x_coco',
        size=(800, 1333),
    ),
}
QUICK_SIZE = 64
PYTORCH, ONNX = 'PyTorch', 'ONNX Runtime'


class ClassifierWorkload(Workload):
    """A classifier and its images."""

    def __init__(self, name: str, args: argparse.Namespace):
        super().__init__(create(name, args.size).requires_grad_(False), args)
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


def content_of(workload: ClassifierWorkload | DetectorWorkload) -> bytes:
    """Return an ONNX file with the model of a workload."""
    image = workload.inputs[0]
    names = getattr(workload.model, 'input_names', ['image'])
    outputs = getattr(workload.model, 'output_names', ['scores'])
    task = getattr(workload.model, 'task', 'classification')
    metadata = Metadata(task, list(names), list(outputs), list(image.shape[2:]))
    program = export_program(workload.model, workload.inputs)
    return serialize(program, metadata, 'onnx')


def workload_of(name: str, args: argparse.Namespace):
    """Build a model by its name, which ends with .py for a detector."""
    if not name.endswith('.py'):
        return ClassifierWorkload(name, args)
    return DetectorWorkload(name, args.size)


def rows(args: argparse.Namespace) -> Iterator[dict]:
    calls, differences = {}, {}
    for name in args.models:
        workload, name = workload_of(name, args), Path(name).stem
        measure.progress(name)
        session = open_session(content_of(workload), 'onnx')
        exported = functools.partial(session, *workload.inputs)
        expected = workload.scores(workload.inference())
        found = (workload.scores(exported()) - expected).abs().max()
        differences[name] = (found / expected.abs().max()).item()
        chosen = args.memory_format
        if chosen == 'best':
            chosen = fastest_format(workload, 'inference', args.seconds)
        workload.prepare('inference', chosen)
        calls[name, PYTORCH], calls[name, ONNX] = workload.inference, exported
    measure.progress('all in turns')
    times = measure.interleave(calls, rounds=args.rounds, seconds=args.seconds)
    for name, runtime in sorted(calls, key=lambda call: call[1]):
        timing = times[name, runtime]
        row = {
            'model': name,
            'pass': runtime,
            'images_per_s': measure.rounded(args.batch / timing.median),
            **timing.columns(times.get((args.baseline, runtime))),
            'over_pytorch': '',
            'difference': '',
        }
        if runtime == ONNX:
            speedup = timing.speedup_over(times[name, PYTORCH])
            row['over_pytorch'] = measure.rounded(speedup, 3)
            row['difference'] = measure.rounded(differences[name], 2)
        yield row


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = measure.make_parser(__doc__, rounds=5, seconds=0.5, device=None)
    parser.add_argument('--set', default='classifiers', choices=SETS)
    parser.add_argument('--models', nargs='+', help='default: models of the set')
    parser.add_argument('--baseline', help='default: baseline of the set')
    measure.add_size(parser, None)
    parser.add_argument('--batch', type=positive, default=1, help='of classifiers')
    add_memory_format(parser)
    parser.set_defaults(compile=False, amp_dtype=None, device='cpu')
    args = measure.parse(parser, argv)
    if args.quick and args.size is None:
        args.size = QUICK_SIZE, QUICK_SIZE
    for name, value in SETS[args.set].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    detectors = sum(name.endswith('.py') for name in args.models)
    if detectors not in (0, len(args.models)):
        parser.error('--models must be all classifiers or all detectors')
    if detectors and args.batch != 1:
        parser.error(f'--batch must be 1 for detectors, got {args.batch}')
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    measure.report(
        rows(args),
        args,
        *('timm', 'onnxruntime'),
        title='Exported models',
        size=measure.size_text(args.size),
        batch=args.batch,
        dtype='float32',
        baseline=args.baseline,
        memory_format=args.memory_format,
    )
    return 0


if __name__ == '__main__':
    run_main(main)
