"""Report a number for each head of each layer: a table, a csv file and a heat map."""

import csv
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.table import Table
from torch import Tensor

from ..cli.terminal import print_table
from ..images.draw import styled
from . import mask_layers
from .image_in_model import LoadedModel

CELL_INCHES = 0.42
MARGIN_INCHES = 1.6
TEXT = 6  # points in a cell
ABSENT = '0.85'  # gray of heads that do not exist or have no value


def report(
    model: LoadedModel,
    layers: Sequence[str],
    values: Tensor,
    quantity: str,
    out: Path,
    title: str,
):
    """Print `values` (L, M), draw them to `out`, and write them beside it as csv.

    Masked heads are marked. Heads that do not exist or have no value are NaN.
    """
    masks = _masks(model, layers)
    _print(layers, values, masks, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    _write(layers, values, masks, quantity, out.with_suffix('.csv'))
    _draw(values, masks, quantity, f'{title}\n{model.label}', out)


def _masks(model: LoadedModel, layers: Sequence[str]) -> list[dict[int, str]]:
    """Return the masked heads of each layer, and whether they are hard or soft."""
    known = mask_layers(model.backbone)
    return [
        dict.fromkeys(
            known[name].masked_heads, 'hard' if known[name].alpha is None else 'soft'
        )
        if name in known
        else {}
        for name in layers
    ]


def _print(layers, values, masks, title):
    heads = range(values.shape[1])
    columns = ['layer', 'name', *(f'head {head}' for head in heads)]
    table = Table(*columns, title=title, caption='* masked')
    for i, (name, row, masked) in enumerate(zip(layers, values, masks, strict=True)):
        cells = [
            '' if row[h].isnan() else f'{row[h]:.3f}' + '*' * (h in masked)
            for h in heads
        ]
        table.add_row(str(i), name, *cells)
    print_table(table)


def _write(layers, values, masks, quantity, path):
    with path.open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow(['layer', 'name', 'head', 'mask', quantity])
        for i, name in enumerate(layers):
            for head, value in enumerate(values[i].tolist()):
                if value == value:  # not NaN
                    mask = masks[i].get(head, '')
                    writer.writerow([i, name, head, mask, f'{value:.6g}'])


@styled
def _draw(values, masks, quantity, title, out):
    """Draw layers from left to right and heads downward, masked ones in red frames.

    Numbers that are too small for two digits are written as <.01.
    """
    L, M = values.shape
    size = (L * CELL_INCHES + MARGIN_INCHES, M * CELL_INCHES + MARGIN_INCHES)
    figure = Figure((max(size[0], 3 * MARGIN_INCHES), size[1]))
    axis = figure.subplots()
    axis.set_facecolor(ABSENT)
    drawn = axis.imshow(values.T.numpy(), vmin=0, vmax=1, aspect='auto')
    for i, row in enumerate(values):
        for head in range(M):
            if not row[head].isnan():
                color = 'white' if row[head] < 0.6 else 'black'
                text = f'{row[head]:.2f}' if row[head] >= 0.005 else '<.01'
                place = dict(ha='center', va='center', fontsize=TEXT)
                axis.text(i, head, text, color=color, **place)
            if head in masks[i]:
                corner, style = (i - 0.46, head - 0.46), dict(fill=False, linewidth=1.5)
                axis.add_patch(Rectangle(corner, 0.92, 0.92, edgecolor='red', **style))
    axis.set(xlabel='layer', ylabel='head', xticks=range(L), yticks=range(M))
    notes = ['red frame: masked'] * any(masks)
    notes += ['gray: no value'] * bool(values.isnan().any())
    axis.set_title('\n'.join(filter(None, [title, '; '.join(notes)])))
    figure.colorbar(drawn, label=quantity, pad=0.01)
    figure.savefig(out)
