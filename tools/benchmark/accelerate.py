"""Time detectors of transformers as they are, and after `mmattn.accelerate`.

    OMP_NUM_THREADS=1 python -m tools.benchmark.accelerate --rounds 2 \\
        --csv docs/benchmarks/accelerate_cpu.csv

Models come from transformers' default configs, with random weights, which need no
download. `infer` is a forward of one image; `train` is a forward and the backward of
the sum of the outputs, since the losses are the same before and after. Both kinds of a
model take turns in one run (see `measure.py`). With one thread, times are CPU times,
which other work on the machine changes little. `difference` is the largest one of an
output, over its largest value.
"""

import argparse
import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import mmattn
from mmattn.cli.terminal import run_main
from mmattn.integrations.accelerate import Accelerated
from tools.benchmark import measure

QUICK_SIZE = 64
MODELS = (
    *('DeformableDetr', 'RTDetr', 'RTDetrV2', 'DFine', 'Mask2Former'),
    *('OneFormer', 'GroundingDino', 'OmDetTurbo'),
)
TEXT = [[101, 4937, 1012, 102]]  # [CLS] cat . [SEP]


def make_model(name: str) -> nn.Module:
    """Return a model of transformers with random weights."""
    import transformers

    settings = {}
    if name == 'DeformableDetr':
        settings = dict(use_timm_backbone=False, backbone=None)
        features = ['stage2', 'stage3', 'stage4']
        settings['backbone_config'] = transformers.ResNetConfig(out_features=features)
    config = getattr(transformers, f'{name}Config')(**settings)
    heads = 'ForObjectDetection', 'ForUniversalSegmentation'
    head = next(name + head for head in heads if hasattr(transformers, name + head))
    torch.manual_seed(0)
    return getattr(transformers, head)(config)


def make_inputs(name: str, size: tuple[int, int]) -> dict:
    inputs = dict(pixel_values=torch.randn(1, 3, *size))
    if 'GroundingDino' in name:
        inputs['input_ids'] = torch.tensor(TEXT)
    elif name == 'OmDetTurbo':
        words = torch.tensor([[49406, 2368, 49407]])  # <start> cat <end>
        ones = torch.ones_like(words)
        inputs |= dict(classes_input_ids=words, classes_attention_mask=ones)
        inputs |= dict(tasks_input_ids=words, tasks_attention_mask=ones)
        inputs['classes_structure'] = torch.tensor([1])
    elif name == 'OneFormer':
        inputs['task_inputs'] = torch.randint(1, 77, (1, 77))
    return inputs


def outputs(model: nn.Module, inputs: dict) -> list[Tensor]:
    found = model(**inputs)
    return [
        x for x in found.values() if isinstance(x, Tensor) and x.is_floating_point()
    ]


@torch.no_grad()
def infer(model: nn.Module, inputs: dict):
    outputs(model, inputs)


def train(model: nn.Module, inputs: dict):
    model.zero_grad()
    sum(x.sum() for x in outputs(model, inputs) if x.requires_grad).backward()


def rows(args: argparse.Namespace) -> Iterator[dict]:
    clock = 'cpu' if torch.get_num_threads() == 1 else 'wall'
    for name in args.models:
        measure.progress(name)
        inputs, theirs = make_inputs(name, args.size), make_model(name).eval()
        ours = copy.deepcopy(theirs)
        mmattn.accelerate(ours)
        with torch.no_grad():
            expected, actual = (outputs(model, inputs) for model in (theirs, ours))
        difference = max(
            ((x - y).abs().max() / y.abs().max()).item()
            for x, y in zip(actual, expected, strict=True)
            if y.isfinite().all() and y.any()
        )
        for phase in (infer, train):
            models = dict(before=theirs, after=ours)
            calls = {kind: partial(phase, x, inputs) for kind, x in models.items()}
            times = measure.interleave(calls, args.rounds, args.seconds, clock)
            before, after = times['before'], times['after']
            yield dict(
                model=name,
                size=measure.size_text(args.size),
                phase=phase.__name__,
                modules=sum(isinstance(x, Accelerated) for x in ours.modules()),
                before_ms=measure.rounded(1e3 * before.median),
                after_ms=measure.rounded(1e3 * after.median),
                speedup=measure.rounded(after.speedup_over(before), 3),
                difference=f'{difference:.1e}',
            )


def main(argv: list[str] | None = None):
    parser = measure.make_parser(__doc__, rounds=3, seconds=0.2, device=None)
    measure.add_size(parser, [640])
    parser.add_argument('--models', nargs='+', choices=MODELS, default=MODELS)
    args = measure.parse(parser, argv)
    if args.quick:
        args.size, args.models = (QUICK_SIZE, QUICK_SIZE), MODELS[:1]
    title = 'Detectors of transformers before and after mmattn.accelerate'
    measure.report(rows(args), args, 'transformers', title=title)


if __name__ == '__main__':
    run_main(main)
