"""Tables of the model zoo: our networks beside those of the papers.

Parameters and FLOPs of ours come from the metafiles, those of rivals, and what the
papers print of both, from tools/papers.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from pathlib import Path

from tools.dev.markdown import markdown
from tools.dev.metafiles import ROOT, SECOND_FLOPS, metafiles, read_models
from tools.papers.tables import (
    KINDS,
    equals_as_printed,
    omitted_rows,
    paper_rows,
    papers,
    printed_figures,
    printed_results,
)

# The columns of a task: what papers call their figures. Those after the first of a
# column stand in brackets behind it.
TASKS = {
    'classification': {
        'Top-1': ('Top 1 Accuracy',),
        'V2': ('ImageNet-V2',),
        'ReaL': ('ReaL',),
        'images/s': ('images/s',),
    },
    'detection': {
        'box AP (50, 75)': ('box AP', 'box AP50', 'box AP75'),
        'mask AP (50, 75)': ('mask AP', 'mask AP50', 'mask AP75'),
    },
    'segmentation': {'mIoU': ('mIoU',), 'multi-scale': ('mIoU(ms)',)},
}
USUAL_GPU = 'RTX 3090'
FOLDERS = dict(classification='classification', cifar100='')
FOLDERS |= dict.fromkeys(('sem_fpn', 'upernet', 'segformer'), 'segmentation')
SCHEDULE = re.compile(r'_(\d+[xek])_(coco|ade20k)$')
# Classifiers for other images or data, plain ViTs, and MaiT's with other masks.
VARIANT = re.compile('384|448|672|896|21k|ViT-[TSB]/|^vit_|_12l|_24l|_36l|_sch|_soft')


@dataclass
class Network:
    """A row. A figure has several texts where papers print several."""

    name: str
    method: str = ''
    config: str = ''
    figures: dict[str, list[str]] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)  # tables by paper
    notes: list[str] = field(default_factory=list)

    def add(self, key: str, text: str):
        """Append a text that none of the figure repeats with fewer digits."""
        texts = self.figures.setdefault(key, [])
        if text not in texts and all(not same(text, other) for other in texts):
            texts.append(text)

    def number(self, key: str) -> float | None:
        """Return a figure, the first that is printed."""
        return float(self.figures[key][0]) if key in self.figures else None


def same(*texts: str) -> bool:
    """Return whether two texts are one number, as 89 and 89.0."""
    numbers = [float(text) for text in texts if re.fullmatch(r'[\d.]+', text)]
    return len(numbers) == len(texts) and len(set(numbers)) == 1


def task_of(config: str) -> str:
    """Return the task of a config or its folder; detection is what is left."""
    return FOLDERS.get(config.partition('/')[0], 'detection')


def figures_of(task: str) -> list[str]:
    return [name for names in TASKS[task].values() for name in names]


def method_of(config: str) -> str:
    """Return folder and schedule of a config of a detector or segmentor."""
    folder, _, name = config.partition('/')
    found = SCHEDULE.search(name)
    return f'{folder} {found[1]}' if found else ''


def link_of(paper: Mapping) -> str:
    """Return the short name of a paper, with its address."""
    first = next(iter(paper['configs'].values()))[0]
    return f'[{first["name"].partition(" with")[0]}]({paper["url"]})'


def printed_text(paper: Mapping, table: str, key: str, text: str) -> str:
    """Return a figure, with its GPU if it depends on it and that is not the usual."""
    device = paper['results'][table].get('device', '').partition(',')[0]
    named = key == 'images/s' and device != USUAL_GPU
    return f'{text} ({device})' if named else text


@cache
def counted() -> dict[str, dict]:
    """Return the counts in the metafiles by `<folder>/<name>`."""
    return {
        f'{path.parent.name}/{model["Name"]}': model['Metadata']
        for path in metafiles()
        for model in read_models(path)
    }


def ours(paper: Mapping, task: str) -> Iterator[Network]:
    """Yield our networks that a paper prints accuracies of."""
    for folder, collections in paper['configs'].items():
        for collection in collections if task_of(folder) == task else ():
            for name, facts in collection['models'].items():
                known = {k: str(facts[k]) for k in figures_of(task) if k in facts}
                if known:
                    place = facts.get('source', collection.get('source', ''))
                    yield our_network(paper, f'{folder}/{name}', known, place)


def our_network(paper: Mapping, config: str, known: dict, place: str) -> Network:
    """Return a row of ours, with notes on figures that disagree."""
    counts = counted()[config]
    flops = counts['FLOPs'] / 1e9
    name = config.partition('/')[2]
    network = Network(name, method_of(config), config)
    tables = network.sources.setdefault(link_of(paper), [place])
    known = known | {
        'params': f'{counts["Parameters"] / 1e6:.1f}',
        'flops': f'{flops:.{2 if flops < 20 else 0}f}',
    }
    network.figures = {key: [text] for key, text in known.items()}
    for table, printed in printed_results(paper).get(config, {}).items():
        for key, text in printed.items():
            if key not in known:
                network.add(key, printed_text(paper, table, key, text))
            elif text != known[key]:
                network.notes.append(f'{table} prints {text} in place of {known[key]}')
            if key in figures_of(task_of(config)) and table not in tables:
                tables += [table] if key not in known else []
    for text in counts_with_norms(paper, config):
        if f'{flops:.{len(text.partition(".")[2])}f}' != text:
            network.notes.append(f'the paper prints {text} GFLOPs, with norms')
    return network


def counts_with_norms(paper: Mapping, config: str) -> dict[str, None]:
    """Return the FLOPs that a paper prints of a config and that count norms."""
    return dict.fromkeys(
        row['flops']['printed']
        for row in paper_rows()
        if row['config'] == f'configs/{config}.py'
        and row['source'].startswith(paper['cited_as'])
        and 'norms' in row.get('convention', '')
        and 'flops' in row
        and not row.keys() & {'options', 'part', 'reading_of'}
    )


def rivals(paper: Mapping, task: str) -> Iterator[Network]:
    """Yield the networks of other authors beside which a paper puts its own."""
    results, ablated = printed_results(paper), printed_figures(paper)
    for table, content in paper.get('results', {}).items():
        names = dict.fromkeys(line.split()[0] for line in content['rows'].splitlines())
        configs = [name for name in names if name in counted()]
        if not configs or task_of(configs[0]) != task:
            continue
        pretrained = all('in21k' in config for config in configs)
        for name in names.keys() - ablated.keys() - {*configs}:
            network = Network(
                f'{name}, ImageNet-21k' if pretrained else name, method_of(configs[0])
            )
            network.sources[link_of(paper)] = [table]
            if name in content.get('notes', {}):
                network.notes.append(content['notes'][name])
            for key, text in results[name][table].items():
                network.add(key, printed_text(paper, table, key, text))
            yield network


@cache
def networks(task: str) -> list[Network]:
    """Return the rows of a task by method, the ones with the fewest FLOPs first.

    Rivals that several papers quote are one row, with each figure that is printed.
    """
    found = {}
    for paper in papers():
        for network in [*ours(paper, task), *rivals(paper, task)]:
            name = network.config or network.name, network.method
            row = found.setdefault(name, network)
            for link, tables in network.sources.items():
                known = row.sources.setdefault(link, [])
                known += [table for table in tables if table not in known]
            for key, texts in network.figures.items():
                for text in texts:
                    row.add(key, text)
    return sorted(found.values(), key=lambda n: (n.method, n.number('flops'), n.name))


def zoo(words: list[str], folder: Path) -> str:
    """Return the table of a task, or of the variants of its networks.

    Links are relative to `folder`.
    """
    task, *variants = words
    columns = TASKS[task] | {'params (M)': ('params',), 'FLOPs (G)': ('flops',)}
    rows, notes = [['method', 'network', *columns, 'printed in']], []
    for network in networks(task):
        if bool(VARIANT.search(network.name)) != bool(variants):
            continue
        name = network.name
        if network.config:
            path = os.path.relpath(ROOT / f'configs/{network.config}.py', folder)
            name = f'**[{SCHEDULE.sub("", name)}]({path})**'
        if network.notes:
            mark = re.sub(r'\W', '-', f'{network.method}-{network.name}'.strip('-'))
            name += f'[^{mark}]'
            notes.append(f'[^{mark}]: {"; ".join(network.notes)}.\n')
        cells = [cell(network.figures, names) for names in columns.values()]
        sources = '; '.join(
            f'{link} {", ".join(map(short, tables))}'.strip()
            for link, tables in network.sources.items()
        )
        rows.append([network.method, name, *cells, sources])
    return '\n'.join([markdown(without_empty(rows)), *notes])


def printed(words: list[str]) -> str:
    """Return tables of a paper side by side, as it prints them."""
    file, *numbers = words
    (paper,) = (paper for paper in papers() if paper['file'] == file)
    results, counts = printed_results(paper), printed_figures(paper)
    tables = {
        f'Table {number}': paper['results'][f'Table {number}'] for number in numbers
    }
    columns = [(table, key) for table, of in tables.items() for key in of['columns']]
    columns = [(table, key) for table, key in columns if key not in KINDS]
    lines = [line for of in tables.values() for line in of['rows'].splitlines()]
    rows = [['', *(key for _, key in columns), 'params (M)', 'FLOPs (G)']]
    for name in dict.fromkeys(line.split()[0] for line in lines):
        found = [results[name].get(table, {}).get(key, '') for table, key in columns]
        facts = {**counts.get(name, {}), **results[name].get(next(iter(tables)), {})}
        shown = name.replace('_', ' ')
        rows.append([shown, *found, *(facts.get(kind, '') for kind in KINDS)])
    devices = '; '.join(
        f'{table} on {of["device"]}' for table, of in tables.items() if 'device' in of
    )
    caption = f'{link_of(paper)}, {", ".join(tables)}'
    caption += f' ({devices})' if devices else ''
    return f'{markdown(without_empty(rows))}\n{caption}.\n'


def short(place: str) -> str:
    """Return a place in a paper as it stands in a column of such."""
    place = place.removeprefix('Table ').removeprefix('the paper')
    return 'README' if place.startswith('README') else place


def cell(figures: Mapping[str, list[str]], names: tuple[str, ...]) -> str:
    """Return the first figure of a column, and the others in brackets."""
    first, *others = (' / '.join(figures.get(name, [])) for name in names)
    return f'{first} ({", ".join(others)})' if others and all(others) else first


def without_empty(rows: list[list[str]]) -> list[list[str]]:
    """Return a table without the columns that have a head alone."""
    kept = [any(column[1:]) for column in zip(*rows, strict=True)]
    return [list(compress(row, kept)) for row in rows]


def metrics(model: dict, kind: str) -> dict[str, float]:
    return {
        name: value
        for result in model.get(kind, ())
        for name, value in result['Metrics'].items()
    }


def model_table(metafile: Path, folder: Path) -> str:
    """Return a table with one row for each model.

    Papers' metrics have columns of their own. The size of images is a line below the
    table if all models have the same. Links are relative to `folder`.
    """
    models = read_models(metafile)
    sizes = {model['Metadata']['Image Size'] for model in models}
    columns = dict.fromkeys(
        (kind, name)
        for kind in ('Results', 'Paper Results')
        for model in models
        for name in metrics(model, kind)
    )
    head = ['config', *['height x width'] * (len(sizes) > 1)]
    head += ['parameters (M)', 'FLOPs (G)']
    second_flops = [
        field
        for field in SECOND_FLOPS
        if any(field in model['Metadata'] for model in models)
    ]
    head += [field.removeprefix('FLOPs ').lower() for field in second_flops]
    head += [f'{name}, paper' if 'Paper' in kind else name for kind, name in columns]
    rows = [head]
    for model in models:
        path = os.path.relpath(ROOT / model['Config'], folder)
        metadata = model['Metadata']
        row = [f'[{model["Name"]}]({path})']
        row += [metadata['Image Size']] * (len(sizes) > 1)
        row.append(f'{metadata["Parameters"] / 1e6:.2f}')
        for key in ('FLOPs', *second_flops):
            flops = metadata.get(key)
            row.append('' if flops is None else f'{flops / 1e9:.2f}')
        row += [str(metrics(model, kind).get(name, '')) for kind, name in columns]
        rows.append(row)
    caption = f'\nFLOPs are those of {sizes.pop()} pixels.\n' if len(sizes) == 1 else ''
    return markdown(rows) + caption


def agreement_table() -> str:
    """Return a table that counts the figures of ours that equal a paper's."""
    counts = {}
    for row in paper_rows():
        if 'reading_of' in row:  # counts once
            continue
        paper = counts.setdefault(row['source'].partition(',')[0], [0, 0, 0, 0, 0])
        found = [row[kind] for kind in ('params', 'flops') if kind in row]
        equal = list(map(equals_as_printed, found))
        paper[0] += len(found)
        paper[1] += sum(equal)
        paper[2] += 1
        paper[3] += all(equal)
    for row in omitted_rows():
        counts[row['source'].partition(',')[0]][4] += 1
    head = ['paper', 'figures', 'equal as printed', 'rows', 'equal in all figures']
    rows = [[*head, 'omitted, with a reason']]
    rows += [[paper, *map(str, numbers)] for paper, numbers in counts.items()]
    totals = map(sum, zip(*counts.values(), strict=True))
    return markdown([*rows, ['all', *map(str, totals)]])
