"""Write the model of a config for ONNX Runtime, OpenVINO or torch.export, or as a page.

The file holds the names of the classes, the normalization and the size of images, so
that `mmattn.export.load` runs it without the config. Files for ONNX Runtime (.onnx)
and OpenVINO (.xml) need no PyTorch.

The checkpoint must match the model exactly. An existing file is kept unless --force.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from ..export.choices import DTYPES, DYNAMIC, ONNXRUNTIME_WEB, PARTS, SUFFIXES
from .terminal import (
    add_model,
    add_trust,
    command_parser,
    config_of,
    parse_run,
    positive,
)

MEGA = 1e6


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    add_model(parser)
    parser.add_argument(
        '--out', type=Path, required=True, help='file to write, with --web a folder'
    )
    parser.add_argument(
        '--web',
        action='store_true',
        help='write a page that runs the model in the browser, for any server of files',
    )
    parser.add_argument(
        '--examples',
        nargs='+',
        type=Path,
        default=[],
        metavar='IMAGE',
        help='images that visitors of the page may choose; they are copied to --out',
    )
    parser.add_argument(
        '--onnxruntime-web',
        type=Path,
        metavar='TGZ',
        help=f'the file {ONNXRUNTIME_WEB}; default: download it from npm',
    )
    parser.add_argument(
        '--format', choices=list(SUFFIXES), help='default: the suffix of --out'
    )
    parser.add_argument(
        '--shape',
        nargs=2,
        type=positive,
        required=True,
        metavar=('HEIGHT', 'WIDTH'),
        help='size of the images, rounded up to what the model pads to. Images that '
        'the test pipeline makes larger, such as portraits at 800 x 1333, are shrunk '
        'to fit, unless --dynamic is size',
    )
    parser.add_argument('--batch', type=positive, default=1, help='default: 1')
    parser.add_argument(
        '--dynamic',
        choices=DYNAMIC[1:],
        help='let the batch vary, or batch, height and width; default: fixed',
    )
    parser.add_argument(
        '--part', choices=PARTS, default='model', help='default: the whole model'
    )
    parser.add_argument(
        '--output', choices=['logits', 'labels'], help='of a segmentor, default: logits'
    )
    parser.add_argument(
        '--normalize', action='store_true', help='normalize images inside the file'
    )
    parser.add_argument(
        '--input-dtype', choices=DTYPES, default='float32', help='default: float32'
    )
    parser.add_argument(
        '--verify',
        type=Path,
        metavar='IMAGE_OR_FOLDER',
        help='compare the file with PyTorch on these images, and write nothing if it '
        "differs; default: images of the config's test set, or noise where it is not "
        'here',
    )
    parser.add_argument(
        '--num-images',
        type=positive,
        default=10,
        help='images to compare, evenly spaced (default: 10)',
    )
    parser.add_argument(
        '--int8',
        action='store_true',
        help='quantize an ONNX file with images of the test set, and write nothing if '
        'AP, mIoU or accuracy drops by more than 0.5 points on at least 50 of them, or '
        'if the file is not 1.3 times as fast here as in float32',
    )
    parser.add_argument(
        '--keep-float',
        nargs='+',
        default=[],
        metavar='PATTERN',
        help='modules or nodes that --int8 leaves in float32, for example "*.attn"',
    )
    parser.add_argument('--force', action='store_true', help='overwrite the file')
    add_trust(parser)
    args = parse_run(parser, argv)
    if args.verify is not None and not args.verify.exists():
        parser.error(f'--verify: no image or folder at {args.verify}')
    if args.verify is not None and not images_at(args.verify):
        parser.error(f'--verify: no files in {args.verify}')
    if args.web and args.format not in (None, 'onnx'):
        parser.error(f'--web: a page runs ONNX files, not --format {args.format}')
    if not args.web and (args.examples or args.onnxruntime_web):
        parser.error('--examples and --onnxruntime-web require --web')
    for path in args.examples:
        if not path.is_file():
            parser.error(f'--examples: no image at {path}')
    return args


def images_at(path: Path, count: int = 1) -> list[Path]:
    """Return files of a folder, evenly spaced, or the file itself."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file())
    count = min(count, len(files))
    return [files[(2 * i + 1) * len(files) // (2 * count)] for i in range(count)]


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    if not args.web:
        return export(args, args.out)
    from ..export.web import check_folder, write_page

    check_folder(args.out, args.force)
    with TemporaryDirectory() as folder:
        file = Path(folder, 'model.onnx')
        export(args, file)
        page = write_page(
            file,
            args.out,
            examples=args.examples,
            archive=args.onnxruntime_web,
            force=args.force,
        )
    print(f'{page}: view it with python -m http.server --directory {args.out}')
    return 0


def export(args: argparse.Namespace, out: Path) -> int:
    """Write the file that the arguments describe, and say what is in it."""
    from ..export.api import export_model
    from ..weights.read import trusted_checkpoints

    with trusted_checkpoints(args.trust_checkpoint):
        metadata = export_model(
            config_of(args),
            args.checkpoint,
            out,
            shape=args.shape,
            format=args.format,
            batch=args.batch,
            dynamic=args.dynamic,
            part=args.part,
            output=args.output,
            normalize=args.normalize,
            input_dtype=args.input_dtype,
            verify=args.verify and images_at(args.verify, args.num_images),
            num_images=args.num_images,
            int8=args.int8,
            keep_float=args.keep_float,
            force=args.force,
            say=print,
        )
    parts = [out, out.with_suffix('.bin')] if out.suffix == '.xml' else [out]
    names = ' and '.join(map(str, parts))
    size = sum(part.stat().st_size for part in parts) / MEGA
    H, W = metadata.shape
    outputs = ', '.join(metadata.outputs)
    print(f'{names}: {metadata.task}, {outputs}, {H} x {W}, {size:.1f} MB')
    return 0
