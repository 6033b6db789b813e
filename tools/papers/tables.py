"""Read what the papers print, from `papers/*.yml`; `papers/README.md` has the keys."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from mmattn.apis.model_index import LOADER

PAPERS = Path(__file__).parent
CONFIGS = PAPERS.parents[1] / 'configs'
UNITS = {'params': 1e6, 'flops': 1e9}
FIELDS = {'params': 'Parameters', 'flops': 'FLOPs'}  # of a metafile


@cache
def counts_of_ours() -> dict[str, dict]:
    """Return the counts in the metafiles by `<folder>/<name>`."""
    return {
        f'{path.parent.name}/{model["Name"]}': model['Metadata']
        for path in CONFIGS.glob('*/metafile.yml')
        for model in yaml.load(path.read_text(), LOADER)['Models']
    }


def papers() -> list[dict]:
    """Return the contents of the papers' files, in the order of their positions.

    `file` is the name of the file, without its suffix.
    """
    files = [
        dict(yaml.load(path.read_text(), LOADER), file=path.stem)
        for path in PAPERS.glob('*.yml')
    ]
    return sorted(files, key=lambda paper: paper['position'])


def printed_figures(paper: Mapping) -> dict[str, dict[str, str]]:
    """Return a paper's figures as printed, with their source, by row.

    A figure that the table leaves out is absent. One that has not been read is '?'.
    """
    rows = {}
    for table, lines in paper.get('tables', {}).items():
        for line in lines.splitlines():
            name, *values = line.split()
            figures = dict(zip(UNITS, values, strict=True))
            rows[name] = {kind: text for kind, text in figures.items() if text != '-'}
            rows[name]['source'] = f'{paper["cited_as"]}, {table}'
    return rows


def paper_rows() -> list[dict]:
    """Return the papers' rows of which ours are counted, with both figures."""
    found = []
    for paper in papers():
        printed = printed_figures(paper)
        for name, row in paper.get('rows', {}).items():
            figures = printed[row.get('reading_of', name)]
            row = dict(row, name=name, source=figures['source'])
            counts = row.pop('ours', None) or _counts(row['config'], figures)
            row['config'] = f'configs/{row["config"]}.py'
            for kind, ours in counts.items():
                text = figures[kind]
                row[kind] = dict(paper=float(text), printed=text, ours=ours)
            found.append(row)
    return found


def omitted_rows() -> list[dict]:
    """Return the papers' rows that have a reason in place of a figure of ours."""
    found = []
    for paper in papers():
        printed = printed_figures(paper)
        for group in paper.get('omitted', []):
            for name in group['rows']:
                facts = dict(source=printed[name]['source'], omitted=group['reason'])
                found.append(dict(name=name, **facts))
    return found


def recipes() -> dict[str, dict]:
    """Return the recipe of each config of a paper, by `<folder>/<name>`.

    `gpus` is 8 and `warmup` is None where the file has none. A `warmup` of None is not
    the paper's, or is counted in iterations.
    """
    return {
        f'{folder}/{name}': {
            **dict(gpus=8, warmup=None, drop_path=None),
            **paper['recipes'][model['recipe']],
            **{key: model[key] for key in ('drop_path', 'gpus') if key in model},
        }
        for paper in papers()
        for folder, collections in paper['configs'].items()
        for collection in collections
        for name, model in collection['models'].items()
    }


def equals_as_printed(figure: Mapping) -> bool:
    """Return whether `ours`, rounded as the paper rounds, is the figure it prints.

    `printed` is the paper's figure as text, since 4.60 has one decimal more than 4.6.
    """
    decimals = len(figure['printed'].partition('.')[2])
    return round(figure['ours'], decimals) == figure['paper']


def _counts(config: str, printed: Mapping[str, str]) -> dict[str, float]:
    """Return what the metafile counts, of the figures that a paper prints."""
    counts = counts_of_ours()[config]
    kinds = [kind for kind in UNITS if printed.get(kind, '?') != '?']
    return {kind: counts[FIELDS[kind]] / UNITS[kind] for kind in kinds}
