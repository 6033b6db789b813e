"""Write a published checkpoint with our names, after it has loaded into its model.

    python -m tools.converters.convert_checkpoint CONFIG SRC DST

Our models read published files as they are, so this is needed only to rename their
tensors for other programs, or to keep COCO's 80 classes of a Deformable DETR that has
91 category ids (--coco-classes). CONFIG is the config of the model. With --backbone the
file holds a backbone, with or without a head, and DST holds the backbone alone, for
`init_cfg=dict(type='Pretrained', checkpoint=DST)`. Nothing is written if a tensor is
missing or unexpected.
"""

import io
from pathlib import Path

import torch

import mmattn
from mmattn.analysis.flops import build
from mmattn.apis.find import read_config
from mmattn.cli.terminal import add_trust, command_parser, run_main
from mmattn.cli.verify_weights import is_whole
from mmattn.errors import UserError
from mmattn.files.atomic import write_atomically
from mmattn.weights.layouts.coco_classes import with_coco_classes
from mmattn.weights.layouts.deformable_detr import convert_state_dict
from mmattn.weights.load import find_weights, load_weights
from mmattn.weights.read import read_checkpoint, trusted_checkpoints
from mmattn.weights.resolve import local_checkpoint


def convert(
    config: str, src: str, *, backbone: bool = False, coco_classes: bool = False
) -> dict[str, torch.Tensor]:
    """Return the weights of a published file by the names of a config's model.

    Raises:
        ValueError: a tensor is missing, unexpected or of another shape.
    """
    model = build(read_config(config), 'cpu')
    weights = find_weights(read_checkpoint(local_checkpoint(src)), src)
    if coco_classes:
        weights = with_coco_classes(convert_state_dict(weights))
    if backbone:
        model = model.backbone
    report = load_weights(model, weights)
    exact = not report.missing and not report.unexpected
    parts = {name for name, _ in model.named_children()}
    if not (is_whole(report, parts) if backbone else exact):
        lines = [f'{src} does not fit {config}: {report}', *report.differences()]
        raise UserError('\n  '.join(lines))
    return model.state_dict()


def main(argv: list[str] | None = None):
    parser = command_parser(__doc__)
    parser.add_argument('config', help='config of the model, a path or a name')
    parser.add_argument('src', help='checkpoint to convert: a path, a name, an address')
    parser.add_argument('dst', type=Path, help='.pth file to write')
    parser.add_argument('--backbone', action='store_true', help='convert only that')
    parser.add_argument(
        '--coco-classes',
        action='store_true',
        help='keep the 80 classes of COCO of a Deformable DETR for its 91 category ids',
    )
    add_trust(parser)
    args = parser.parse_args(argv)
    if args.dst.exists():
        raise UserError(f'{args.dst} already exists: remove it or choose another file')
    options = dict(backbone=args.backbone, coco_classes=args.coco_classes)
    with trusted_checkpoints(args.trust_checkpoint):
        weights = convert(args.config, args.src, **options)
    content = io.BytesIO()
    meta = dict(mmattn_version=mmattn.__version__, source=Path(args.src).name)
    torch.save(dict(meta=meta, state_dict=weights), content)
    args.dst.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.dst, content.getvalue())
    print(f'{args.src} -> {args.dst}, {len(weights)} tensors')


if __name__ == '__main__':
    run_main(main)
