"""Write the tables and diagrams of `docs/models`, or check them.

    python -m tools.dev.generate_model_pages
    python -m tools.dev.generate_model_pages --check

A page asks for a table with a line `<!-- KIND ARGUMENTS -->`, which `<!-- end of KIND
-->` closes. Recipes come from the papers' files, times
from the csv files of `docs/benchmarks`, channels and diagrams from the models.

    channels                the maps of every backbone in every size
    classes                 the reference of every backbone
    sizes CLASS             the presets of a backbone
    speed NAME ...          rows of the benchmarks of models
    recipes PATTERN ...     how the papers trained
    weights                 published files that load
    starts                  public weights of related networks, and what is taken
"""

import argparse
import fnmatch
import os
import re
import sys
from collections import Counter
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import urlparse

import torch
from torch import nn

import mmattn.models
from mmattn.analysis.flops import build
from mmattn.errors import UserError
from mmattn.models.backbones import __all__ as BACKBONES
from mmattn.weights.names import config_of, published_files
from tools.benchmark.measure import read_csv
from tools.dev.generate_model_zoo import ROOT, metafiles, read_models
from tools.dev.readme_tables import filled, markdown, write_pages
from tools.dev.start_tables import start_table
from tools.papers.tables import recipes

DOCS = ROOT / 'docs'
BENCHMARKS = DOCS / 'benchmarks'
DIAGRAMS = DOCS / 'images' / 'models'
SIDE = 224  # pixels of the images in channels and diagrams
NOT_BLOCKS = ('Norm', 'Drop', 'Identity', 'LayerScale')
WIDTH, ROW, GAP = 640, 62, 26  # of diagrams


@cache
def maps_of(name: str, arch: str) -> tuple[tuple[int, int], ...]:
    """Return channels and strides of the maps that a backbone returns by default."""
    backbone = backbone_of(name, arch)
    with torch.no_grad():
        maps = backbone(torch.empty(1, 3, SIDE, SIDE, device='meta'))
    return tuple((each.shape[1], round(SIDE / each.shape[2])) for each in maps)


@cache
def backbone_of(name: str, arch: str) -> nn.Module:
    return build(dict(type=f'mmattn.{name}', arch=arch), 'meta').eval()


def listed(values) -> str:
    """Return the entries of a preset as text."""
    if isinstance(values, (tuple, list)):
        return ', '.join(map(str, values))
    return str(values)


def channels(_: list[str]) -> str:
    """Return the table of the maps of all backbones."""
    rows = [['backbone', '`arch`', 'channels', 'strides']]
    for name in BACKBONES:
        for arch in getattr(mmattn.models, name).arch_zoo:
            maps = maps_of(name, arch)
            rows.append(
                [
                    f'`{name}`',
                    f"`'{arch}'`",
                    *(listed(x) for x in zip(*maps, strict=True)),
                ]
            )
    return markdown(rows)


def sizes(arguments: list[str]) -> str:
    """Return the presets of a backbone."""
    (name,) = arguments
    zoo = getattr(mmattn.models, name).arch_zoo
    keys = list(next(iter(zoo.values())))
    rows = [['`arch`', *(f'`{key}`' for key in keys), 'channels', 'strides']]
    for arch, preset in zoo.items():
        maps = (listed(x) for x in zip(*maps_of(name, arch), strict=True))
        rows.append([f"`'{arch}'`", *(listed(preset[key]) for key in keys), *maps])
    return markdown(rows)


@cache
def all_models() -> tuple[dict, ...]:
    """Return the models of all metafiles."""
    return tuple(model for path in metafiles() for model in read_models(path))


def matching(patterns: list[str]) -> list[dict]:
    """Return the models of the metafiles whose names match a pattern."""
    return [
        model
        for model in all_models()
        if any(fnmatch.fnmatch(model['Name'], pattern) for pattern in patterns)
    ]


def speed(names: list[str]) -> str:
    """Return the measured images per second of models, beside the baseline's."""
    passes = {}
    for row in read_csv(BENCHMARKS / 'models_cpu.csv'):
        if row['model'] in names:
            passes.setdefault(row['model'], {})[row['pass']] = row
    if not passes:
        raise UserError(f'the benchmarks have none of {names}')
    head = ['model', 'pixels', 'inference (images/s)', 'beside Swin-T']
    head += ['training step (images/s)', 'beside Swin-T', 'on']
    rows = [head]
    for model, of in passes.items():
        first = of['inference']
        row = [model, f'{first["size"]} x {first["size"]}']
        for which in ('inference', 'training step'):
            row += [of[which]['images_per_s'], of[which]['speedup']]
        rows.append([*row, f'{first["machine"]}, {first["isa"]}, {first["date"]}'])
    return markdown(rows)


def training_recipes(patterns: list[str]) -> str:
    """Return how the papers trained the matching configs."""
    rows = [['config', 'optimizer', 'learning rate', 'weight decay', 'batch', 'length']]
    shown = set()
    for name, recipe in recipes().items():
        if not any(fnmatch.fnmatch(name.partition('/')[2], p) for p in patterns):
            continue
        length = recipe['length']
        unit = 'iterations' if length >= 10_000 else 'epochs'
        row = [recipe[key] for key in ('optimizer', 'lr', 'weight_decay', 'batch')]
        row = [*map(str, row), f'{length:,} {unit}']
        key = (name.partition('/')[0], *row)
        if key not in shown:  # sizes of a model share a recipe
            shown.add(key)
            rows.append([f'`{name}`', *row])
    return markdown(rows)


def weights(_: list[str]) -> str:
    """Return the published files that a backbone of ours reads."""
    rows = [['name', 'file', 'backbone', 'SHA-256', 'license', 'config']]
    for name, entry in published_files().items():
        url, config = entry['url'], config_of(entry)
        file = f'`{url}`'
        if not url.startswith('timm://'):
            file = f'[{Path(urlparse(url).path).name}]({url})'
        backbone = dict(type=entry['type'], **entry['args'])
        text = ', '.join(f'{key}={value!r}' for key, value in backbone.items())
        if config is not None:
            link = os.path.relpath(ROOT / f'configs/{config}.py', DOCS)
            config = f'[{config}]({link})'
        known = f'`{entry["sha256"]}...`' if 'sha256' in entry else 'unknown'
        facts = known, entry.get('license', 'unknown'), config or ''
        rows.append([f'`{name}`', file, f'`dict({text})`', *facts])
    return markdown(rows)


def classes(_: list[str]) -> str:
    """Return the directives that document all backbones."""
    lines = ['.. currentmodule:: mmattn.models']
    lines += [f'.. autoclass:: {name}' for name in BACKBONES]
    return '\n'.join(['```{eval-rst}', *lines, '```', ''])


TABLES = {
    'channels': channels,
    'classes': classes,
    'sizes': sizes,
    'speed': speed,
    'recipes': training_recipes,
    'weights': weights,
    'starts': lambda _: start_table(),
}


def parts_of(block: nn.Module) -> str:
    """Return the names of a block's layers, without norms and drop paths."""
    names = [type(part).__name__ for part in block.children()]
    return ' + '.join(n for n in names if not any(word in n for word in NOT_BLOCKS))


def stage_rows(name: str, arch: str) -> list[tuple[str, str, str]]:
    """Return size of the map, channels and blocks of each stage of a backbone."""
    backbone = backbone_of(name, arch)
    maps = maps_of(name, arch)
    if hasattr(backbone, 'blocks'):  # a network of blocks returns one map
        groups = [backbone.blocks]
    else:
        groups = [stage.blocks for stage in backbone.stages]
    rows = []
    for group, (width, stride) in zip(groups, maps, strict=True):
        kinds = Counter(map(parts_of, group))
        text = ', '.join(f'{count} x ({kind})' for kind, count in kinds.items())
        side = round(SIDE / stride)
        rows.append((f'{side} x {side}', f'{width} channels, stride {stride}', text))
    return rows


def diagram(name: str, arch: str) -> str:
    """Return an SVG of the stages of a backbone, with the sizes for an image."""
    rows = [
        (f'{SIDE} x {SIDE}', 'image', '3 channels'),
        *stage_rows(name, arch),
    ]
    height = len(rows) * (ROW + GAP) - GAP + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="15" role="img">',
        f'<title>Stages of {escape(name)}, {escape(arch)}</title>',
        '<defs><marker id="a" markerWidth="8" markerHeight="8" refX="6" refY="4" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#666"/></marker></defs>',
    ]
    largest = SIDE
    for index, (size, first, second) in enumerate(rows):
        y = 2 + index * (ROW + GAP)
        if index:
            parts.append(
                f'<path d="M{WIDTH / 2} {y - GAP}V{y - 1}" stroke="#666" '
                'stroke-width="1.5" marker-end="url(#a)"/>'
            )
        fill = '#f2f2f2' if index == 0 else '#e3eefc'
        parts.append(
            f'<rect x="2" y="{y}" width="{WIDTH - 4}" height="{ROW}" rx="8" '
            f'fill="{fill}" stroke="#8aa6c8"/>'
        )
        side = max(4, 46 * (int(size.split()[0]) / largest) ** 0.5)
        parts.append(
            f'<rect x="{36 - side / 2:.1f}" y="{y + ROW / 2 - side / 2:.1f}" '
            f'width="{side:.1f}" height="{side:.1f}" fill="#8aa6c8"/>'
        )
        parts.append(
            f'<text x="76" y="{y + 25}" fill="#111"><tspan font-weight="bold">'
            f'{escape(size)}</tspan>  {escape(first)}</text>'
            f'<text x="76" y="{y + 47}" fill="#333">{escape(second)}</text>'
        )
    return '\n'.join([*parts, '</svg>', ''])


def diagrams() -> dict[Path, str]:
    """Return the diagrams that pages show, by path."""
    found = {}
    for page in sorted((DOCS / 'models').glob('*.md')):
        for name, arch in re.findall(
            r'\]\(\.\./images/models/(\w+?)_([\w-]+)\.svg\)', page.read_text()
        ):
            found[DIAGRAMS / f'{name}_{arch}.svg'] = diagram(name, arch)
    return found


def pages() -> list[Path]:
    """Return the pages that may ask for tables."""
    found = sorted((DOCS / 'models').glob('*.md'))
    return [*found, DOCS / 'weights.md', DOCS / 'api/models.md']


def outputs() -> dict[Path, str]:
    """Return what the pages and diagrams should be, by path."""
    return {page: filled(page, TABLES) for page in pages()} | diagrams()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--check', action='store_true', help='write nothing')
    args = parser.parse_args()
    stale = write_pages(outputs(), args.check)
    names = [f'{path.relative_to(ROOT)} is not up to date' for path in stale]
    print('\n'.join(names) or 'all pages are up to date')
    return int(args.check and bool(stale))


if __name__ == '__main__':
    sys.exit(main())
