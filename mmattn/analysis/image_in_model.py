"""Put images into a config's model, for the tools that draw what happens inside."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mmengine.config import DictAction
from mmengine.dataset import pseudo_collate
from torch import Tensor, nn

from mmattn.errors import UserError

from ..apis.config_model import ConfigModel, ModelInput
from ..apis.find import RANDOM, find_model
from ..cli.terminal import add_config, add_trust, command_parser, config_file
from ..engine.data import build_dataset
from ..images import read_channels, read_image
from ..weights.load import partial_loads
from ..weights.read import trusted_checkpoints


@dataclass(frozen=True)
class ImageInModel(ModelInput):
    """A backbone in eval mode, and an image that is prepared for it.

    Attributes:
        label: the model's name in pictures: config, overridden entries, weights.
    """

    label: str
    backbone: nn.Module


class LoadedModel(ConfigModel):
    """A config's model; `label` is its name in pictures."""

    label = ''

    @property
    def backbone(self) -> nn.Module:
        return self.model.backbone

    def inputs_of(self, args: argparse.Namespace) -> list[Tensor]:
        """Return what the model gets for the images of `make_images_parser`.

        Each has the shape (3, H, W).

        Raises:
            ValueError: there are neither image files nor --samples, or both, or the
                test data set has fewer images.
        """
        if bool(args.images) == (args.samples is not None):
            raise UserError('pass either image files or --samples')
        if args.images:
            return [self.put(image).inputs[0] for image in args.images]
        with self.default_scope():
            key = 'test_dataloader.dataset'
            dataset = build_dataset(self.cfg.test_dataloader.dataset, key)
            if not 1 <= args.samples <= len(dataset):
                raise UserError(
                    f'--samples must be between 1 and {len(dataset)}, the images of '
                    f'{key}, got {args.samples}'
                )
            batches = [pseudo_collate([dataset[i]]) for i in range(args.samples)]
        prepare = self.model.data_preprocessor
        return [prepare(batch, False)['inputs'][0] for batch in batches]

    def put(self, image: str) -> ImageInModel:
        """Prepare an image file by the model's test pipeline and preprocessor."""
        if not Path(image).is_file():
            raise UserError(f'there is no readable image at {image}')
        channels = self.channels
        pixels = read_channels(image, channels) if channels else read_image(image)
        view = self.inspect(pixels, lambda model, view: view)
        return ImageInModel(**vars(view), label=self.label, backbone=self.backbone)


def make_parser(description: str, out: str) -> argparse.ArgumentParser:
    """Build the parser of a tool that draws one image, in one model or two."""
    parser = make_model_parser(description, out)
    parser.add_argument('image', help='image file; the test pipeline prepares it')
    parser.add_argument(
        '--compare',
        type=config_file,
        metavar='CONFIG',
        help='config of a model to draw beside it',
    )
    parser.add_argument('--compare-checkpoint', metavar='CHECKPOINT')
    parser.add_argument(
        '--compare-cfg-options',
        nargs='+',
        action=DictAction,
        help='entries of the config of --compare to override, key=value',
    )
    parser.add_argument(
        '--layers',
        nargs='+',
        type=int,
        metavar='LAYER',
        help='layers to draw, counted from 0; -1 is the last; default: some, evenly '
        'spaced',
    )
    return parser


def make_images_parser(description: str, out: str) -> argparse.ArgumentParser:
    """Build the parser of a tool that averages over images, in one model."""
    parser = make_model_parser(description, out)
    parser.add_argument(
        'images',
        nargs='*',
        metavar='IMAGE',
        help='image files to average over; the test pipeline prepares them',
    )
    parser.add_argument(
        '--samples',
        type=int,
        metavar='N',
        help="average over the first N images of the config's test data set instead",
    )
    return parser


def make_model_parser(description: str, out: str) -> argparse.ArgumentParser:
    """Build the parser of a tool that draws one model."""
    parser = command_parser(description)
    add_config(parser)
    parser.add_argument(
        '--checkpoint', help='checkpoint of the model, default: random weights'
    )
    parser.add_argument('--out', type=Path, default=Path(out), help=f'default: {out}')
    add_trust(parser)
    parser.add_argument(
        '--allow-partial-load',
        action='store_true',
        help='warn instead of failing if a checkpoint does not match the model',
    )
    return parser


def add_query(parser: argparse.ArgumentParser, default: str, **options):
    """Add --query, which takes a pixel of the image file."""
    parser.add_argument(
        '--query',
        nargs=2,
        type=int,
        metavar=('Y', 'X'),
        help=f'row and column of a pixel of the image file, default: {default}',
        **options,
    )


def parse_args(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> argparse.Namespace:
    """Parse arguments, and refuse options of --compare without it."""
    args = parser.parse_args(argv)
    if args.compare is None:
        for name in ('compare_checkpoint', 'compare_cfg_options'):
            if getattr(args, name) is not None:
                parser.error(f'--{name.replace("_", "-")} needs --compare')
    return args


def load_models(args: argparse.Namespace) -> list[ImageInModel]:
    """Put the image into the models of the config and of --compare."""
    given = [(args.config, args.checkpoint, args.cfg_options)]
    if args.compare is not None:
        given.append((args.compare, args.compare_checkpoint, args.compare_cfg_options))
    with trusted_checkpoints(args.trust_checkpoint):
        models = [_load(*each, args.allow_partial_load) for each in given]
    return [model.put(args.image) for model in models]


def load_model(args: argparse.Namespace) -> LoadedModel:
    """Load the model of the config, for a tool that draws one model."""
    given = args.config, args.checkpoint, args.cfg_options
    with trusted_checkpoints(args.trust_checkpoint):
        return _load(*given, args.allow_partial_load)


def choose(indices: Sequence[int] | None, count: int, what: str, most: int):
    """Return which of `count` things to draw: `indices`, or up to `most` by default."""
    if indices is None:
        return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
    for index in indices:
        if not -count <= index < count:
            raise UserError(f'{what} must be in [{-count}, {count - 1}], got {index}')
    return [index % count for index in indices]


def _load(
    config: str, checkpoint: str | None, cfg_options: dict | None, partial: bool
) -> LoadedModel:
    """Load a model in eval mode."""
    torch.manual_seed(0)
    with partial_loads(partial):
        found = find_model(config, checkpoint or RANDOM, cfg_options)
        loaded = LoadedModel(found, 'cpu')
    options = [f'{key}={value}' for key, value in (cfg_options or {}).items()]
    weights = 'random weights' if checkpoint is None else Path(checkpoint).name
    loaded.label = ', '.join([Path(config).stem, *options, weights])
    return loaded
