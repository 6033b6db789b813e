"""Search which heads of a model to mask: each step writes the next config to train.

    python tools/analysis/mask_search.py initialize CONFIG    # writes FIRST
    python tools/train.py FIRST
    python tools/analysis/mask_search.py assign FIRST         # writes SECOND
    python tools/train.py SECOND
    python tools/analysis/mask_search.py calibrate SECOND     # writes THIRD
    python tools/train.py THIRD

is the quick empirical search of "MaiT: Leverage Attention Masks for More Efficient
Image Transformers" (https://arxiv.org/abs/2207.03006), section 4.3. The configs inherit
CONFIG and set `model.backbone.masking`, so the backbone must have that argument. They
are written to work_dirs/mask_search/NAME_1_initialize.py and so on by default. `assign`
and `calibrate` measure the locality of the trained heads on images of the config's data
set, without augmentation. `report` compares finished trainings.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from typing import NamedTuple

import numpy as np
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope
from rich.table import Table
from torch import Tensor, nn

import mmattn  # noqa: F401  makes mmcv's operators and the config prefixes available
from mmattn.analysis import (
    locality_by_layer,
    mask_layers,
    mask_search,
    pad_heads,
)
from mmattn.analysis.attention_calls import AttentionCall, watch_attention
from mmattn.analysis.flops import build
from mmattn.analysis.image_in_model import load_model
from mmattn.analysis.masks import mask_width
from mmattn.analysis.training_logs import (
    last_log,
    summarize,
    work_dir_of,
)
from mmattn.apis.find import run_checkpoint
from mmattn.cli.terminal import (
    add_trust,
    command_parser,
    positive,
    print_table,
    run_main,
)
from mmattn.engine.data import build_dataset
from mmattn.errors import UserError
from mmattn.files.config_files import innermost_dataset
from mmattn.files.config_text import check_text

FOLDER = Path('work_dirs/mask_search')
STEPS = {
    'initialize': 'Step 1: head 0 of every layer is masked.',
    'assign': 'Step 2: by the locality of head 0, all heads, head 0, or none.',
    'calibrate': 'Step 3: of layers with all heads masked, those that became local.',
}
ACCURACY = 'accuracy/top1'

Masks = list[list[int]]


class Measured(NamedTuple):
    """The masks of a trained model, and the scores (L, M) of its heads.

    `uniform` is the score of a head that attends to all tokens alike.
    """

    masks: Masks
    locality: Tensor
    uniform: float


def masks_of(backbone: nn.Module) -> Masks:
    """Return the masked heads of each attention layer that can mask heads."""
    return [list(layer.masked_heads) for layer in mask_layers(backbone).values()]


def build_model(cfg: Config, device: str) -> nn.Module:
    model = build(cfg, device=device)
    if not masks_of(getattr(model, 'backbone', nn.Module())):
        raise UserError('the model has no backbone with attention that can be masked')
    return model.eval()


def load_images(cfg: Config, model: nn.Module, split: str, count: int) -> list[Tensor]:
    """Return evenly spaced images of a split, each (3, H, W), as the backbone's inputs.

    Training images go through the pipeline of validation, which is not random.
    """
    key = f'{split}_dataloader'
    if cfg.get(key) is None or cfg.get('val_dataloader') is None:
        raise UserError(f'the config must have val_dataloader and {key}')
    pipeline = innermost_dataset(cfg.val_dataloader).pipeline
    dataset_cfg = {**innermost_dataset(cfg[key]), 'pipeline': pipeline}
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        dataset = build_dataset(dataset_cfg, f'{key}.dataset')
        count = min(count, len(dataset))
        chosen = np.linspace(0, len(dataset) - 1, count).round().astype(int)
        batches = (pseudo_collate([dataset[index]]) for index in chosen.tolist())
        return [model.data_preprocessor(batch, False)['inputs'][0] for batch in batches]


def measure(args: argparse.Namespace) -> Measured:
    if args.checkpoint is None:
        run = work_dir_of(args.config, Config.fromfile(args.config))
        args.checkpoint = str(run_checkpoint(run, 'last'))
    loaded = load_model(args)
    images = load_images(loaded.cfg, loaded.model, args.split, args.num_images)
    scores = dict(locality_by_layer(loaded.backbone, images))
    locality = pad_heads([scores[name] for name in mask_layers(loaded.backbone)])
    uniform = uniform_locality(loaded.backbone, images[0])
    return Measured(masks_of(loaded.backbone), locality, uniform)


def uniform_locality(backbone: nn.Module, image: Tensor) -> float:
    """Return the score of equal attention to all tokens in the first layer."""
    reach = mask_width(backbone) // 2

    def read(call: AttentionCall) -> float:
        neighbors = 1.0
        for side in call.grid:
            ends = np.arange(side)[:, None] + (-reach, reach)
            first, last = ends.clip(0, side - 1).T
            neighbors *= (last - first + 1).mean().item()
        return neighbors / call.num_tokens

    return watch_attention(backbone, image[None], read)[0]


def next_masks(args: argparse.Namespace, measured: Measured) -> Masks:
    """Return the masks of a step, if the model has those of the step before."""
    masks, locality = measured.masks, measured.locality
    if args.step == 'assign':
        if masks != mask_search.initialize(len(masks)):
            raise UserError(
                f'assign needs a model with head 0 masked in every layer, got {masks}'
            )
        return mask_search.assign(locality, args.high, args.low)
    if any(x not in ([], [0], list(range(locality.shape[1]))) for x in masks):
        raise UserError(
            'calibrate needs a model with all heads, head 0 or no head masked in '
            f'each layer, got {masks}'
        )
    return mask_search.calibrate(masks, locality, args.low)


def write_config(path: Path, base: Path, masks: Masks, facts: dict):
    """Write a config that inherits `base`, once a model with `masks` was built."""
    cfg = Config.fromfile(base)
    cfg.merge_from_dict({'model.backbone.masking': masks})
    if masks_of(build_model(cfg, device='meta').backbone) != masks:
        raise UserError(f'the backbone of {base} does not follow `masking`')
    base = Path(os.path.relpath(base.resolve(), path.parent.resolve())).as_posix()
    check_text(base, 'the path of the base config')
    text = (
        f'# Written by tools/analysis/mask_search.py.\n'
        f'# {STEPS[facts["step"]]}\n'
        f'_base_ = {base!r}\n'
        f'model = dict(backbone=dict(masking={pformat(masks)}))\n'
        f'# The facts behind the decision, which a training does not read.\n'
        f'mask_search = {pformat(dict(base=base, **facts))}\n'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def table_of(masks: Masks, measured: Measured | None) -> Table:
    """Return the masks, and where heads were measured their locality, by layer."""
    heads = 0 if measured is None else measured.locality.shape[1]
    names = ['layer', *(f'ALS of {head}' for head in range(heads))]
    names += ['masked'] if measured is None else ['masked before', 'masked now']
    table = Table(*names, box=None, pad_edge=False)
    for layer, now in enumerate(masks):
        cells = [str(layer)]
        if measured is not None:
            cells += [f'{score:.3f}' for score in measured.locality[layer].tolist()]
            cells.append(_heads(measured.masks[layer]))
        table.add_row(*cells, _heads(now))
    return table


def _heads(heads: Sequence[int]) -> str:
    return ' '.join(map(str, heads)) or '-'


def search(args: argparse.Namespace):
    begun = Config.fromfile(args.config).get('mask_search')
    base = args.config.parent / begun.base if begun else args.config
    number = 1 + list(STEPS).index(args.step)
    out = args.out or FOLDER / f'{base.stem}_{number}_{args.step}.py'
    if out.exists() and not args.force:
        raise UserError(f'{out} exists; --force overwrites it')
    facts, measured = dict(step=args.step), None
    if args.step == 'initialize':
        model = build_model(Config.fromfile(args.config), device='meta')
        masks = mask_search.initialize(len(masks_of(model.backbone)))
    else:
        measured = measure(args)
        masks = next_masks(args, measured)
        thresholds = ('high', 'low') if args.step == 'assign' else ('low',)
        facts |= {name: getattr(args, name) for name in thresholds}
        facts |= dict(
            split=args.split,
            num_images=args.num_images,
            uniform=round(measured.uniform, 3),
            locality=[[round(x, 3) for x in row] for row in measured.locality.tolist()],
        )
    print_table(table_of(masks, measured))
    if measured is not None:
        print(f'attention to all tokens alike would score {measured.uniform:.3f}')
    write_config(out, base, masks, facts)
    print(f'{out}: {sum(map(len, masks))} masked heads')


def report(configs: Sequence[Path], out: Path | None):
    """Print the last accuracies of trained configs, and write `<run>.json` files.

    The best accuracy would flatter a run, since it is chosen on the validation images.
    """
    table = Table(box=None, pad_edge=False)
    for title in ('run', ACCURACY, 'masked heads', 'minutes'):
        table.add_column(title, justify='left' if title == 'run' else 'right')
    for path in configs:
        cfg = Config.fromfile(path)
        run = work_dir_of(path, cfg)
        records, folder = last_log(run)
        if not records:
            raise UserError(f'{path} was not trained in {run}')
        summary = summarize(str(path), folder, records, (ACCURACY,))
        if ACCURACY not in summary['metrics']:
            raise UserError(
                f'the log in {folder} has no {ACCURACY}: not a finished classifier'
            )
        masks = masks_of(build_model(cfg, device='meta').backbone)
        summary['metrics']['masked heads'] = sum(map(len, masks))
        summary['masks'] = [_heads(heads) for heads in masks]
        columns = *summary['metrics'].values(), summary['minutes']
        table.add_row(run.name, *map(str, columns))
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            file = out / f'{run.name}.json'
            file.write_text(json.dumps(summary, indent=2) + '\n')
    print_table(table)


def main(argv: Sequence[str] | None = None):
    parser = command_parser(__doc__)
    steps = parser.add_subparsers(dest='step', required=True)
    for step, summary in STEPS.items():
        command = steps.add_parser(step, help=summary, description=summary)
        command.add_argument('config', type=Path, help='what the step before wrote')
        command.add_argument('--out', type=Path, help='config to write')
        command.add_argument('--force', action='store_true', help='overwrite --out')
        if step == 'initialize':
            continue
        command.set_defaults(cfg_options=None, allow_partial_load=False)
        command.add_argument('--checkpoint', help='default: the latest of its work dir')
        split = dict(choices=['train', 'val'], default='train')
        command.add_argument('--split', **split, help='of the images, default: train')
        spaced = 'evenly spaced in the data set, default: %(default)s'
        command.add_argument('--num-images', type=positive, default=256, help=spaced)
        add_trust(command)
        command.add_argument('--low', type=float, default=mask_search.LOW)
        if step == 'assign':
            command.add_argument('--high', type=float, default=mask_search.HIGH)
    compare = steps.add_parser('report', help='Compares finished trainings.')
    compare.add_argument('config', type=Path, nargs='+', help='trained configs')
    compare.add_argument('--out', type=Path, help='folder for <run>.json files')
    args = parser.parse_args(argv)
    if args.step == 'report':
        report(args.config, args.out)
    else:
        search(args)


if __name__ == '__main__':
    run_main(main)
