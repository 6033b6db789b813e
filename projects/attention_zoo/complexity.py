"""Count parameters and FLOPs of ViT with each mixer beside the paper's figures.

    PYTHONPATH=. python projects/attention_zoo/complexity.py

`paper_figures.csv` has what Tables 2 to 4 of https://arxiv.org/abs/2402.17507 print.
The command writes `complexity.csv`, and the table of the README.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from mmengine.config import Config

from mmattn.analysis import Complexity, count
from mmattn.cli.terminal import command_parser
from tools.dev.markdown import markdown, replace_between
from tools.papers.tables import equals_as_printed

FOLDER = Path(__file__).parent
CONFIG = FOLDER / 'vit_t16_zoo_300e_in1k.py'
FIGURES = FOLDER / 'paper_figures.csv'
COUNTS = FOLDER / 'complexity.csv'
README = FOLDER / 'README.md'
MARKS = '<!-- complexity -->\n', '<!-- end of complexity -->\n'
MIXERS = {
    'Local': 'LocalAttention',
    'Performer': 'PerformerAttention',
    'Scatterbrain': 'ScatterbrainAttention',
    'Nystromformer': 'NystromAttention',
    'LARA': 'LARAAttention',
    'Combiner': 'CombinerAttention',
    'Long-Short': 'LongShortAttention',
    'EVA': 'EVAAttention',
}
OURS = {'Softmax': 'mhsa', 'iMHSA': 'imhsa'}  # attentions of mmattn's own ViT
NETWORKS = {
    'ViT-T/16': dict(arch='tiny', patch_size=16),
    'ViT-S/16': dict(arch='small', patch_size=16),
    'ViT-T/8': dict(arch='tiny', patch_size=8),
}
CHANNELS = dict(tiny=192, small=384)


def count_network(method: str, network: str, size: int) -> Complexity:
    """Count a classifier of 1000 classes on images of a size, in the defaults."""
    settings = NETWORKS[network]
    if method in OURS:
        backbone = dict(type='mmattn.ViT', attention=OURS[method], **settings)
    else:
        backbone = dict(type='ZooViT', mixer=dict(type=MIXERS[method]), **settings)
    cfg = Config.fromfile(CONFIG)
    cfg.model.backbone = backbone
    cfg.model.head.in_channels = CHANNELS[settings['arch']]
    return count(cfg, (size, size))


def read(path: Path) -> list[dict]:
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def rows() -> Iterator[dict]:
    """Yield the rows of `complexity.csv`, in millions and in billions."""
    for row in read(FIGURES):
        place = {key: row[key] for key in ('table', 'method', 'network', 'size')}
        found = count_network(row['method'], row['network'], int(row['size']))
        # The position embedding of the larger images is not in the paper's tables.
        params = f'{found.params / 1e6:.3f}' if row['params'] else ''
        yield place | {
            'paper_params_m': row['params'],
            'params_m': params,
            'paper_flops_g': row['flops'],
            'flops_g': f'{found.flops / 1e9:.3f}',
        }


def beside(paper: str, ours: str) -> str:
    """Return our figure, in bold where it does not print as the paper's."""
    if not paper:
        return ''
    figure = dict(paper=float(paper), printed=paper, ours=float(ours))
    return ours if equals_as_printed(figure) else f'**{ours}**'


def table(rows: list[Mapping[str, str]]) -> str:
    """Return the README's table, without the larger images of our own methods."""
    figures = ['params (M), paper', 'ours', 'FLOPs (G), paper', 'ours']
    lines = [['table', 'method', 'network', 'image', *figures]]
    for row in rows:
        if row['table'] == '4' and row['method'] in OURS:
            continue
        cells = [row[key] for key in ('table', 'method', 'network', 'size')]
        for paper, ours in (
            ('paper_params_m', 'params_m'),
            ('paper_flops_g', 'flops_g'),
        ):
            cells += [row[paper], beside(row[paper], row[ours])]
        lines.append(cells)
    return markdown(lines)


def main():
    command_parser(__doc__).parse_args()
    counted = list(rows())
    with COUNTS.open('w', newline='') as file:
        writer = csv.DictWriter(file, counted[0], lineterminator='\n')
        writer.writeheader()
        writer.writerows(counted)
    text = table(counted)
    replace_between(README, *MARKS, f'\n{text}\n')
    print(text)


if __name__ == '__main__':
    main()
