"""Turn a published checkpoint into one that `init_cfg` of our backbone loads.

    convert_checkpoint.py pvt_v2_b2.pth pvt_v2_b2_mmattn.pth --model pvt_v2_b2

writes a checkpoint that a config loads with

    backbone=dict(type='mmattn.PVTv2', arch='b2', init_cfg=dict(
        type='Pretrained', checkpoint='pvt_v2_b2_mmattn.pth'))

A backbone also converts the weights that it loads. This tool reports before training
how each tensor would load. It writes nothing if the file belongs to another model or is
incomplete. Weights may be at the top of the file or under `state_dict`, `model` or
`module`. They may belong to a whole classifier, detector or segmentor, whose other
parts are left out. Code in the file is not run.

`load_from` or the detector's `init_cfg` load the weights of a whole Deformable DETR:

    convert_checkpoint.py r50_deformable_detr-checkpoint.pth r50_mmattn.pth \
        --model deformable_detr_r50

It keeps its classes. The files of the authors and of Hugging Face have 91, COCO's
category ids. --coco-classes converts them to the 80 classes of mmdet's CocoDataset and
of the configs here.

A backbone that returns maps does not use a classifier's class token and final norm
(PVT). The norms of its other maps start anew (DAT, DAT++). To convert for a classifier,
pass --options out_type=cls_token (PVT) or out_indices=3 (DAT, DAT++).

--verify loads the new file through `init_cfg` and runs it on an image of any size. If a
package has a model in the source's layout, it compares the outputs, and exits with 1 if
they differ.
"""

import argparse
import io
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import DictAction
from mmengine.runner import CheckpointLoader
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mmattn
from mmattn.cli.terminal import run_main
from mmattn.engine import trusted_checkpoints
from mmattn.errors import UserError
from mmattn.files.atomic import write_atomically
from mmattn.weights.layouts.coco_classes import OUTPUTS, with_coco_classes
from mmattn.weights.load import find_weights, load_weights
from mmattn.weights.report import LoadReport, list_names

from .compare_with_source import compare, normalized
from .known_models import Detector, Model, known_models

# First names of heads: official and timm's, DAT's, Hugging Face's.
HEADS = ('head', 'head_dist', 'cls_head', 'classifier')
# Prefixes of a backbone's names in whole models and their wrappers.
PREFIXES = ('', 'module.', 'model.', 'backbone.', 'module.backbone.', 'model.backbone.')
# Names that only a PVT with a class token has, and the norms of returned maps.
CLASS_TOKEN = (
    'stages.3.downsample.cls_token',
    'out_norms.3.weight',
    'out_norms.3.bias',
)
OUT_NORMS = 'out_norms.'
MIN_WIDTH = 100  # a narrower table would break its names


@dataclass
class Source:
    """The backbone in a checkpoint.

    Attributes:
        layout: the project whose names it has.
        weights: the tensors by these names.
        converted: the tensors by our names.
        left_out: names of the tensors that are not the backbone's.
    """

    layout: str
    weights: dict[str, Tensor]
    converted: dict[str, Tensor]
    left_out: list[str]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('src', help='checkpoint to convert: a path or a URL')
    parser.add_argument('dst', type=Path, help='.pth file to write')
    models = known_models()
    parser.add_argument(
        '--model',
        required=True,
        choices=list(models),
        metavar='MODEL',
        help=f'backbone and size, or detector: {", ".join(models)}',
    )
    parser.add_argument(
        '--options',
        nargs='+',
        action=DictAction,
        default={},
        help='other arguments of the backbone, key=value: img_size=384 window_size=12; '
        'of a detector, settings of its config: decoder.num_queries=100',
    )
    parser.add_argument(
        '--coco-classes',
        action='store_true',
        help='keep the 80 classes of COCO of a detector for its 91 category ids',
    )
    parser.add_argument(
        '--verify', metavar='IMAGE', help='run the new checkpoint on an image file'
    )
    parser.add_argument(
        '--force', action='store_true', help='overwrite DST if it exists'
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='let SRC run the code that it contains while it is read',
    )
    args = parser.parse_args(argv)
    if args.dst.suffix != '.pth':
        parser.error(f'DST must end in .pth, got {args.dst}')
    if args.coco_classes and not isinstance(models[args.model], Detector):
        parser.error(f'--coco-classes: {args.model} is a backbone, without classes')
    return args


def read_weights(src: str, trust: bool) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by their names."""
    with trusted_checkpoints(trust):
        checkpoint = CheckpointLoader.load_checkpoint(src, 'cpu')
    if isinstance(checkpoint, Mapping):
        below = checkpoint.get('module')  # DeepSpeed's
        checkpoint = below if isinstance(below, Mapping) else checkpoint
    weights = find_weights(checkpoint, src)
    return {name: value for name, value in weights.items() if torch.is_tensor(value)}


def find_backbone(
    weights: Mapping[str, Tensor], model: Model | Detector, options: Mapping, src: str
) -> Source:
    """Return the weights below the first prefix that are in a layout of the model.

    Raises:
        ValueError: there is none.
    """
    own = model.build(options, device='meta').state_dict().keys()
    reasons = []
    for prefix in PREFIXES:
        names = {
            name: name.removeprefix(prefix)
            for name in weights
            if name.startswith(prefix)
            and name.removeprefix(prefix).partition('.')[0] not in HEADS
        }
        below = {short: weights[name] for name, short in names.items()}
        if not below:
            continue
        try:
            layout = model.layout_of(below)
        except ValueError as error:
            reasons.append(str(error))
            continue
        converted = model.convert(below)
        if own & converted.keys():
            unused = [name for name in CLASS_TOKEN if name not in own]
            unused = [name for name in unused if converted.pop(name, None) is not None]
            left_out = [name for name in weights if name not in names]
            return Source(layout, below, converted, left_out + unused)
    reason = reasons[0] if reasons else f'{model.name} has none of its names'
    raise UserError(
        f'{src} is not converted: {reason}\n  it has {list_names(list(weights))}'
    )


def load(
    model: Model | Detector, options: Mapping, weights: Mapping[str, Tensor]
) -> LoadReport:
    """Report how weights with our names would load, without keeping a model."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*meta parameter.*no-op')
        return load_weights(model.build(options, device='meta'), weights)


def is_whole(report: LoadReport) -> bool:
    """Return whether nothing is missing except norms of output maps."""
    new = [
        name
        for name in report.missing
        if name.startswith(OUT_NORMS) and name not in report.mismatched
    ]
    return report.missing == new and not report.unexpected


def refusal(
    report: LoadReport,
    weights: Mapping[str, Tensor],
    model: Model | Detector,
    options: Mapping,
    args: argparse.Namespace,
) -> ValueError:
    """Build an error that says what does not match, and which other size would."""
    lines = [f'{args.src} is not converted: it is not {model.name}', str(report)]
    lines += report.differences()
    if misfit := model.misfit(options, weights):
        lines.append(misfit)
    others = [
        other.name
        for other in known_models().values()
        if other.family == model.family
        and other != model
        and is_whole(load(other, options, weights))
        and other.misfit(options, weights) is None
    ]
    if others:
        lines.append(f'it matches --model {" or ".join(others)}')
    return UserError('\n  '.join(lines))


def write(path: Path, weights: Mapping[str, Tensor], **meta: str):
    state_dict = OrderedDict((name, x.clone()) for name, x in weights.items())
    meta['mmattn_version'] = mmattn.__version__
    content = io.BytesIO()
    torch.save(dict(meta=meta, state_dict=state_dict), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())


def summary(report: LoadReport, source: Source) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column('tensors', no_wrap=True)
    table.add_column('count', justify='right')
    table.add_column('names')
    table.add_row('matched', f'{len(report.matched)}', f'of {len(report.sizes)}')
    for kind, names in {
        'resized when loaded': [
            f'{name} {old} to {new}' for name, (old, new) in report.resized.items()
        ],
        'missing, start anew': report.missing,
        'unexpected': report.unexpected,
        'left out': source.left_out,
    }.items():
        table.add_row(kind, f'{len(names)}', list_names(names))
    return table


def main(argv: list[str] | None = None) -> int:
    """Convert; return 1 if the source's model and ours differ on an image.

    Raises:
        ValueError: SRC is no checkpoint, belongs to another model or is incomplete, DST
            exists, or there is no image. Nothing is written.
    """
    args = parse_args(argv)
    if args.dst.exists() and not args.force:
        raise UserError(f'{args.dst} already exists; --force overwrites it')
    image = None if args.verify is None else normalized(args.verify)
    model = known_models()[args.model]
    weights = read_weights(args.src, args.trust_checkpoint)
    source = find_backbone(weights, model, args.options, args.src)
    if args.coco_classes:
        source.converted = with_coco_classes(source.converted)
    options = model.fit(args.options, source.converted)
    report = load(model, options, source.converted)
    if not is_whole(report) or model.misfit(options, source.converted):
        raise refusal(report, source.converted, model, options, args)
    about = dict(model=model.name, source=Path(args.src).name, layout=source.layout)
    write(args.dst, source.converted, **about)

    console = Console()
    console.width = max(console.width, MIN_WIDTH)
    params = sum(report.sizes.values())
    heading = f'{model.name} of {params / 1e6:.2f} M, layout: {source.layout}'
    console.print(heading, soft_wrap=True)
    if args.coco_classes:
        classes = options['bbox_head.num_classes']
        console.print(f"classes: COCO's {classes}, of {OUTPUTS} category ids")
    console.print(summary(report, source))
    console.print(f'{args.src} -> {args.dst}', soft_wrap=True)
    if image is None:
        return 0
    given = source.layout, source.weights, image
    about, table, near = compare(args.dst, model, options, *given)
    console.print(about, soft_wrap=True)
    console.print(table)
    return int(not near)


if __name__ == '__main__':
    run_main(main)
