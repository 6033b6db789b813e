"""Open a page in the browser: predict, look inside, compare two models.

The page is reachable only from this machine unless --host says otherwise.
"""

import argparse
from pathlib import Path

from ..errors import UserError
from ..files.config_files import innermost_dataset
from .terminal import add_trust, command_parser, positive

RUNS = 'work_dirs'  # where training writes


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument(
        'model',
        metavar='MODEL',
        nargs='?',
        default=RUNS,
        help='work dir of a run, a folder of work dirs, config, name of a config, '
        'exported .onnx, .pt2 or .xml file, or name of weights (mmattn://hela-ivit-n); '
        'default: %(default)s',
    )
    parser.add_argument(
        '--weights',
        help="path, name or address of weights; of a work dir also 'best' or 'last'",
    )
    parser.add_argument(
        '--compare',
        action='append',
        default=[],
        metavar='MODEL',
        help='another model to choose; repeatable',
    )
    parser.add_argument(
        '--compare-weights',
        action='append',
        default=[],
        metavar='WEIGHTS',
        help='checkpoint of --compare, in the same order',
    )
    parser.add_argument(
        '--images',
        type=Path,
        help='folder of images to choose from; the page begins with the first one. '
        "Default: some of the first model's test set, if it is on this machine",
    )
    parser.add_argument('--device', help="such as 'cpu' or 'cuda:0'")
    parser.add_argument(
        '--host',
        default='127.0.0.1',
        help='address to listen on; 0.0.0.0 opens the page to others '
        '(default: %(default)s)',
    )
    parser.add_argument(
        '--port', type=positive, help='default: the first free one from 7860'
    )
    parser.add_argument(
        '--max-megapixels',
        type=float,
        default=32.0,
        help='largest image, in millions of pixels (default: %(default)s)',
    )
    parser.add_argument(
        '--max-megabytes',
        type=positive,
        default=64,
        help='largest upload, in millions of bytes (default: %(default)s)',
    )
    add_trust(parser)
    args = parser.parse_args(argv)
    if args.max_megapixels <= 0:
        parser.error(f'--max-megapixels must be positive, got {args.max_megapixels}')
    if args.compare_weights and len(args.compare_weights) != len(args.compare):
        parser.error(
            '--compare-weights must be given as often as --compare, got '
            f'{len(args.compare_weights)} and {len(args.compare)}'
        )
    return args


def main(argv: list[str] | None = None):
    args = parse_args(argv)
    from ..apis.config_model import ConfigModel
    from ..web import server
    from ..web.models import Models, Source, offered_models
    from ..web.photos import example_images, images_in

    server.check_installed()
    if args.model == RUNS and not Path(args.model).is_dir():
        raise UserError(
            f'there is no folder {RUNS}: pass a work dir, a config with its weights, '
            'or an exported file'
        )
    checkpoints = args.compare_weights or [None] * len(args.compare)
    sources = [Source(args.model, args.weights)]
    sources += [Source(*pair) for pair in zip(args.compare, checkpoints, strict=True)]
    models = Models(offered_models(sources), args.device, args.trust_checkpoint)
    # A wrong path is told now rather than in the browser.
    model, images = models[models.names[0]].model, {}
    if args.images:
        images = images_in(args.images)
    elif isinstance(model, ConfigModel):
        images = example_images(innermost_dataset(model.cfg.get('test_dataloader')))
    server.serve(
        models,
        images,
        host=args.host,
        port=args.port,
        max_megapixels=args.max_megapixels,
        max_megabytes=args.max_megabytes,
    )
