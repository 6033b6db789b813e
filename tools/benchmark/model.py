"""Time whole models beside their peers: inference and training step, peak memory.

    python -m tools.benchmark.model --csv docs/benchmarks/models_cpu.csv
    python -m tools.benchmark.model --preset mait_table_5 --device cuda
    OMP_NUM_THREADS=1 python -m tools.benchmark.model --preset maps --csv maps_cpu.csv

--preset is one of `PRESETS`, --models any models. A name stands for one of our ImageNet
configs (`ivit_t` is `configs/classification/ivit_t_300e_in1k.py`, with its head) or of
one of timm's models, among which ours begin with `mmattn_`; `timm://` goes before a
name that is also ours. All take turns in one run
(see `measure.py`), with random weights and random images.
Inference is in evaluation mode without gradients; a training step is zeroing the
gradients, forward in training mode with a drop path rate of 0.1, cross-entropy and
backward, without an optimizer. With --maps models of timm's and ours of that list are
what a detector has: they return the maps of all stages, and the loss is their mean.

Every model, ours too, gets the memory format that is faster for it, in either pass, by
a short trial before; --memory-format sets one for all. --compile compiles all with
torch.compile. `--compile beside` times each model also compiled, and `compiled_speedup`
is the speed of that over the eager model's.
--dtype is that of weights and images, and --amp-dtype runs all under autocast. On CUDA,
cuDNN tries its kernels.
`speedup` is the speed over the baseline's. FLOPs are multiply-accumulates of one
image (`mmattn.analysis`), with hard masks credited. `product_share` is the rate of
multiply-accumulates in inference over the rate of a matrix product of the same dtype
and device, timed in the same rounds.
"""

import argparse
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch import nn

import mmattn.integrations.timm  # noqa: F401  ours among timm's
from mmattn.analysis import count
from mmattn.cli.terminal import positive, run_main
from mmattn.errors import UserError
from tools.benchmark import measure

MODELS = (
    'ivit_t hmait_t lisanet_s lisanet_hybrid_s pvt_v2_b2 dat_t dat_plus_plus_t '
    'timm://pvt_v2_b2 swin_tiny_patch4_window7_224 convnext_tiny caformer_s18 resnet50'
)
PRESETS = {
    # An image of 800 x 1333 as detectors pad it.
    'maps': dict(
        models='mmattn_ivit_tiny mmattn_hmait_tiny mmattn_lisanet_small '
        'mmattn_lisanet_hybrid_small mmattn_pvt_v2_b2 mmattn_pvt_small mmattn_dat_tiny '
        'mmattn_dat_plus_plus_tiny resnet50 convnext_tiny swin_tiny_patch4_window7_224 '
        'caformer_s18',
        maps=True,
        size=[800, 1344],
        batch=1,
        rounds=3,
        clock='cpu',
    ),
    # torch.compile, without the page faults of maps that eager layers do not hold.
    'compiled': dict(
        models='mmattn_ivit_tiny mmattn_pvt_v2_b2 mmattn_dat_plus_plus_tiny '
        'mmattn_hmait_tiny mmattn_lisanet_hybrid_small mmattn_lisanet_small '
        'swin_tiny_patch4_window7_224 convnext_tiny',
        maps=True,
        size=[512, 768],
        batch=1,
        rounds=6,
        memory_format='contiguous',
        clock='user',
        compile='beside',
    ),
    # What a machine without OpenMMLab's packages builds.
    'gpu': dict(
        models='mmattn_ivit_tiny mmattn_hmait_tiny mmattn_lisanet_small '
        'mmattn_dat_plus_plus_tiny mmattn_pvt_v2_b2 swin_tiny_patch4_window7_224 '
        'convnext_tiny timm://pvt_v2_b2 caformer_s18 resnet50',
        memory_format='channels_last',
        amp_dtype='bfloat16',
    ),
    # The protocols of papers.
    'mait_table_5': dict(
        models='hmait_t hmait_s mait_xs mait_s swin_tiny_patch4_window7_224 '
        'swin_small_patch4_window7_224',
        batch=64,
    ),
    'lisa_table_7': dict(
        models='lisanet_b lisanet_hybrid_b swin_base_patch4_window7_224 convnext_base '
        'convnext_large',
        batch=32,
        baseline='swin_base_patch4_window7_224',
    ),
}
CONFIGS = measure.ROOT / 'configs/classification'
BASELINE = 'swin_tiny_patch4_window7_224'
PASSES = ('inference', 'training step')
FORMATS = {
    'contiguous': torch.contiguous_format,
    'channels_last': torch.channels_last,
}
NUM_CLASSES = 1000
DROP_PATH = 0.1
PRODUCT = 'matrix product'
PRODUCT_SIDE = 2048
QUICK_SIZE = 64


def config_of(name: str) -> Path | None:
    """Return the config of a model of ours: `ivit_t` matches `ivit_t_300e_in1k.py`."""
    pattern = re.compile(rf'{re.escape(name)}_\d+e_in1k')
    paths = [path for path in CONFIGS.glob('*.py') if pattern.fullmatch(path.stem)]
    return paths[0] if paths else None


def create(name: str, size: tuple[int, int], maps: bool = False) -> nn.Module:
    """Build a classifier of 1000 classes, or what returns maps, with random weights.

    Raises:
        ValueError: the name is neither ours nor timm's.
    """
    config = config_of(name)
    name = name.removeprefix('timm://')
    if config is not None and not maps:
        from mmengine.config import Config

        from mmattn.analysis.flops import build

        cfg = Config.fromfile(config)
        cfg.model.backbone.drop_path_rate = DROP_PATH
        return build(cfg, device='cpu')
    if not timm.is_model(name):
        raise UserError(
            f'no model {name!r}: there is no {name}_<epochs>e_in1k.py in {CONFIGS}, '
            'and timm has none'
        )
    fixed = timm.get_pretrained_cfg(name).fixed_input_size
    options = {'img_size': size} if fixed else {}
    if maps:
        options['features_only'] = True
    return timm.create_model(name, drop_path_rate=DROP_PATH, **options)


class Workload:
    """A model with what it is run on."""

    def __init__(self, model: nn.Module, args: argparse.Namespace, compiled: bool):
        dtype = getattr(torch, args.dtype)
        self.model = model.to(args.device, dtype)
        self.call = torch.compile(self.model) if compiled else self.model
        generator = torch.Generator().manual_seed(0)
        shape = (args.batch, 3, *args.size)
        self.images = torch.randn(shape, generator=generator).to(args.device, dtype)
        self.labels = torch.randint(NUM_CLASSES, shape[:1], generator=generator)
        self.labels = self.labels.to(args.device)
        amp_dtype = args.amp_dtype and getattr(torch, args.amp_dtype)
        self.autocast = torch.autocast(
            args.device, amp_dtype, enabled=amp_dtype is not None
        )

    def prepare(self, which: str, memory_format: str):
        self.model.train(which == 'training step')
        self.model.to(memory_format=FORMATS[memory_format])
        self.images = self.images.contiguous(memory_format=FORMATS[memory_format])

    def run(self, which: str):
        if which == 'inference':
            with torch.no_grad(), self.autocast:
                self.call(self.images)
            return
        self.model.zero_grad(set_to_none=True)
        with self.autocast:
            out = self.call(self.images)
            if isinstance(out, list):  # maps
                loss = sum(each.mean() for each in out)
            else:
                loss = F.cross_entropy(out, self.labels)
        loss.backward()


def fastest_format(workload: Workload, which: str, args: argparse.Namespace) -> str:
    taken = {}
    for name in FORMATS:
        workload.prepare(which, name)
        calls = {name: functools.partial(workload.run, which)}
        taken |= measure.interleave(calls, 1, args.seconds, args.clock)
    return min(taken, key=lambda name: taken[name].median)


def rows(args: argparse.Namespace) -> Iterator[dict]:
    workloads, sizes, compiled = {}, {}, {}
    for name in args.models:
        model = create(name, args.size, args.maps)
        sizes[name] = count(model, args.size)
        workloads[name] = Workload(model, args, args.compile == 'only')
        if args.compile == 'beside':
            compiled[name] = Workload(model, args, True)
    for which in args.passes:
        formats = {}
        for name, workload in workloads.items():
            measure.progress(f'{name}, {which}')
            formats[name] = args.memory_format
            if args.memory_format == 'best':
                formats[name] = fastest_format(workload, which, args)
            workload.prepare(which, formats[name])
        for name, workload in compiled.items():
            workload.prepare(which, formats[name])
        runs = workloads | {(name, 'compiled'): x for name, x in compiled.items()}
        calls = {name: functools.partial(x.run, which) for name, x in runs.items()}
        dtype = getattr(torch, args.amp_dtype or args.dtype)
        matrices = torch.randn(2, PRODUCT_SIDE, PRODUCT_SIDE, dtype=dtype)
        calls[PRODUCT] = functools.partial(torch.mm, *matrices.to(args.device))
        measure.progress(f'all in turns, {which}')
        times = measure.interleave(calls, args.rounds, args.seconds, args.clock)
        product = PRODUCT_SIDE**3 / times.pop(PRODUCT).median
        for name, workload in workloads.items():
            workload.model.zero_grad(set_to_none=True)
            peak = measure.peak_memory(calls[name], args.device)
            workload.model.zero_grad(set_to_none=True)
            row = {
                'model': name,
                'pass': which,
                'images_per_s': measure.rounded(args.batch / times[name].median),
                **times[name].columns(times.get(args.baseline)),
                'peak_mib': measure.rounded(peak / measure.MIB),
                'params_m': measure.rounded(sizes[name].params / 1e6),
                'flops_g': measure.rounded(sizes[name].flops / 1e9),
                'memory_format': formats[name],
                'product_share': '',
            }
            if name in compiled:
                speedup = times[name, 'compiled'].speedup_over(times[name])
                row['compiled_speedup'] = measure.rounded(speedup, 3)
            if which == 'inference':
                rate = sizes[name].flops * args.batch / times[name].median
                row['product_share'] = measure.rounded(rate / product, 3)
            yield row


def main(argv: list[str] | None = None) -> int:
    parser = measure.make_parser(__doc__, rounds=5, seconds=0.5)
    parser.add_argument('--models', nargs='+', default=MODELS)
    parser.add_argument('--baseline', default=BASELINE, help=f'default: {BASELINE}')
    measure.add_size(parser, [224])
    parser.add_argument('--batch', type=positive, default=8)
    parser.add_argument(
        '--memory-format',
        default='best',
        choices=['best', *FORMATS],
        help='of every model in PyTorch; by default the faster one of each',
    )
    parser.add_argument(
        '--maps', action='store_true', help='of all stages, in place of classes'
    )
    parser.add_argument('--passes', nargs='+', default=PASSES, choices=PASSES)
    measure.add_clock(parser)
    parser.add_argument(
        '--compile',
        nargs='?',
        const='only',
        choices=['only', 'beside'],
        help='beside: each model without and with it',
    )
    parser.add_argument('--dtype', default='float32', choices=measure.DTYPES)
    parser.add_argument('--amp-dtype', choices=measure.DTYPES[1:])
    parser.add_argument(
        '--preset',
        choices=PRESETS,
        help="such as a paper's own protocol, of which other options replace parts",
    )
    chosen = parser.parse_known_args(argv)[0].preset
    parser.set_defaults(**PRESETS.get(chosen, {}))
    args = measure.parse(parser, argv)
    if isinstance(args.models, str):
        args.models = args.models.split()
    if args.quick:
        args.size, args.batch = (QUICK_SIZE, QUICK_SIZE), 1
    torch.backends.cudnn.benchmark = args.device == 'cuda'
    measure.report(
        rows(args),
        args,
        'timm',
        title='Models',
        size=measure.size_text(args.size),
        batch=args.batch,
        dtype=f'autocast {args.amp_dtype}' if args.amp_dtype else args.dtype,
        compiled=args.compile or False,
        clock=args.clock,
        baseline=args.baseline,
    )
    return 0


if __name__ == '__main__':
    run_main(main)
