"""Put images into a config's model, for the tools that draw what happens inside."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config, DictAction
from mmengine.dataset import pseudo_collate
from mmengine.logging import MMLogger
from mmengine.registry import TRANSFORMS, DefaultScope
from mmengine.runner import CheckpointLoader
from torch import Tensor, nn

from mmattn.errors import UserError

from ..apis.placement import Placement, picture_of, transform_name
from ..cli.terminal import add_config, config_file
from ..engine import trusted_checkpoints
from ..engine.data import build_dataset, innermost_dataset
from ..engine.data.loading import with_our_reader
from ..weights.load import find_weights, load_weights
from .flops import build


@dataclass(frozen=True)
class ImageInModel:
    """A backbone, and an image that is prepared for it.

    Attributes:
        label: the model's name in pictures: config, overridden entries, weights.
        backbone: in eval mode.
        inputs: the normalized and padded image, shape (1, 3, H, W).
        picture: the image before normalization, RGB, shape (H, W, 3).
        place: maps pixels of the image file to pixels of `inputs`.
        samples: the image's sample after the preprocessor, None if there is none.
    """

    label: str
    backbone: nn.Module
    inputs: Tensor
    picture: np.ndarray
    place: Placement
    samples: list | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A config's model; `label` is its name in pictures."""

    label: str
    name: str
    cfg: Config
    model: nn.Module

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
        with DefaultScope.overwrite_default_scope(self.cfg.get('default_scope')):
            key = 'test_dataloader.dataset'
            dataset = build_dataset(self.cfg.test_dataloader.dataset, key)
            if not 1 <= args.samples <= len(dataset):
                raise UserError(
                    f'--samples must be between 1 and {len(dataset)}, the images of '
                    f'{key}, got {args.samples}'
                )
            packed = [dataset[index] for index in range(args.samples)]
        return [self._preprocess(sample)['inputs'][0] for sample in packed]

    def put(self, image: str) -> ImageInModel:
        """Prepare an image file by the model's test pipeline and preprocessor."""
        with DefaultScope.overwrite_default_scope(self.cfg.get('default_scope')):
            packed, place = _run_pipeline(self.cfg, self.name, image)
        data = self._preprocess(packed)
        inputs, samples = data['inputs'], data.get('data_samples')
        picture = picture_of(packed['inputs'], inputs.shape[-2:])
        return ImageInModel(self.label, self.backbone, inputs, picture, place, samples)

    def _preprocess(self, packed: dict) -> dict:
        return self.model.data_preprocessor(pseudo_collate([packed]), False)


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
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config(parser)
    parser.add_argument(
        '--checkpoint', help='checkpoint of the model, default: random weights'
    )
    parser.add_argument('--out', type=Path, default=Path(out), help=f'default: {out}')
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='let checkpoints run the code that they contain while they are read',
    )
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
    given = args.config, args.checkpoint, args.cfg_options, args.allow_partial_load
    with trusted_checkpoints(args.trust_checkpoint):
        return _load(*given)


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
    cfg = Config.fromfile(config)
    if cfg_options is not None:
        cfg.merge_from_dict(cfg_options)
    if 'data_preprocessor' in cfg:  # mmpretrain's runner moves it too
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    torch.manual_seed(0)
    model = build(cfg, device='cpu').eval()
    if not hasattr(model, 'backbone') or not hasattr(model, 'data_preprocessor'):
        raise UserError(
            f'the model of {config} must be one of mmdet, mmseg or mmpretrain with a '
            f'backbone, got {type(model).__name__}'
        )
    weights = 'random weights'
    if checkpoint is not None:
        loaded = CheckpointLoader.load_checkpoint(checkpoint, 'cpu')
        report = load_weights(model, find_weights(loaded, checkpoint))
        report.log(checkpoint, MMLogger.get_current_instance())
        report.check(checkpoint, exact=True, partial=partial)
        weights = Path(checkpoint).name
    options = [f'{key}={value}' for key, value in (cfg_options or {}).items()]
    label = ', '.join([Path(config).stem, *options, weights])
    return LoadedModel(label, config, cfg, model)


def _run_pipeline(cfg: Config, config: str, image: str) -> tuple[dict, Placement]:
    """Run the test pipeline on an image file without annotations."""
    pipeline = innermost_dataset(cfg.get('test_dataloader')).get('pipeline')
    if pipeline is None:
        raise UserError(f'{config} has no test_dataloader.dataset.pipeline')
    if not Path(image).is_file():
        raise UserError(f'there is no readable image at {image}')
    names = [transform_name(transform) for transform in pipeline]
    if 'LoadImageFromFile' not in names:
        pipeline, names = (
            [dict(type='LoadImageFromFile'), *pipeline],
            ['LoadImageFromFile', *names],
        )
    results, place = dict(img_path=image, img_id=0, seg_fields=[]), None
    for name, transform in zip(names, pipeline, strict=True):
        if name.startswith('Load') and name != 'LoadImageFromFile':
            continue
        results = with_our_reader(TRANSFORMS.build(transform))(results)
        if results.get('flip'):
            raise UserError(f'{config}: the test pipeline flips images')
        if 'img' not in results:
            continue
        size = tuple(results['img'].shape[:2])
        if place is None:
            place = Placement(size, size)
        elif size != place.size:
            place.follow(name, size)
    return results, place
