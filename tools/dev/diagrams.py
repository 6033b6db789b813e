"""Draw the stages of backbones, for the pages of docs/models."""

from collections import Counter
from functools import cache
from html import escape
from pathlib import Path

import torch
from torch import nn

from mmattn.analysis.flops import build

SIDE = 224  # pixels of the image
NOT_BLOCKS = ('Norm', 'Drop', 'Identity', 'LayerScale')
WIDTH, ROW, GAP = 640, 62, 26


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


def write_diagrams(folder: Path, shown: list[tuple[str, str]]):
    """Write an SVG for each backbone and preset, as `IViT_tiny.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arch in shown:
        (folder / f'{name}_{arch}.svg').write_text(diagram(name, arch))
