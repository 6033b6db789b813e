"""Count the networks with other operators beside the paper's Tables 3, 4 and 12.

    PYTHONPATH=. python projects/lisa_ablations/counts.py

`tools/papers/lisa.yml` has what the paper prints, and `rows.yml` how each row is
counted. The command prints the table and writes it into the README.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from tools.dev.markdown import markdown, replace_between
from tools.papers import counts
from tools.papers.tables import UNITS, equals_as_printed, papers, printed_figures

FOLDER = Path(__file__).parent
CONFIG = 'lisanet_i_self_attention_150e_in1k.py'
README = FOLDER / 'README.md'
MARKS = '<!-- counts -->\n', '<!-- end of counts -->\n'


def read_rows() -> dict[str, dict]:
    """Return the rows of `rows.yml`, by the names of the paper's rows.

    `backbone` has arguments of `AblationLiSANet`, `ours` our millions of parameters and
    billions of multiply-accumulates. `block` counts the first block alone. `side` is
    the side of the image, 224 if absent. `note` explains a deviation from the paper.
    """
    return yaml.safe_load((FOLDER / 'rows.yml').read_text())


def options(backbone: Mapping) -> dict:
    """Return the entries of the config that give a network."""
    found = {f'model.backbone.{name}': value for name, value in backbone.items()}
    if 'embed_dims' in backbone:
        found['model.head.in_channels'] = backbone['embed_dims']
    return found


def count_row(row: Mapping) -> dict[str, int]:
    """Return parameters and multiply-accumulates of a row as the paper counts them."""
    side, block = row.get('side', 224), row.get('block', False)
    without = 'with norms, without transforms'
    given = dict(
        config=CONFIG,
        options=options(row['backbone']),
        part='backbone.blocks.0' if block else '',
        shape=(side, side),
        convention=without if block else 'with transforms and norms',
        flops=True,
    )
    return counts.count_row(given, FOLDER)


def table(rows: Mapping[str, Mapping]) -> str:
    """Return Markdown with the paper's figures and ours, in bold if they differ."""
    (paper,) = (paper for paper in papers() if paper['file'] == 'lisa')
    printed = printed_figures(paper)
    figures = ['params (M), paper', 'ours', 'FLOPs (G), paper', 'ours']
    lines, noted = [['table', 'row', *figures, 'note']], set()
    for name, row in rows.items():
        cells = [printed[name]['source'].rpartition(', ')[2], name]
        for kind in UNITS:
            text, ours = printed[name].get(kind, ''), row['ours'].get(kind)
            cells += [text, '' if ours is None else beside(text, ours)]
        note = row.get('note', '').strip()
        lines.append([*cells, '' if note in noted else note])
        noted.add(note)
    return markdown(lines)


def beside(text: str, ours: float) -> str:
    """Return our figure, in bold where it does not print as the paper's."""
    equal = equals_as_printed(dict(paper=float(text), printed=text, ours=ours))
    return f'{ours:.4g}' if equal else f'**{ours:.4g}**'


def main():
    rows = read_rows()
    for name, row in rows.items():
        found = count_row(row)
        for kind, ours in row['ours'].items():
            if found[kind] != round(ours * UNITS[kind]):
                raise SystemExit(f'{name}: {kind} {found[kind] / UNITS[kind]}')
    replace_between(README, *MARKS, f'\n{table(rows)}\n')
    print(table(rows))


if __name__ == '__main__':
    main()
