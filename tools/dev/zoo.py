"""The model zoo: our networks beside those of the papers.

Parameters and FLOPs of ours come from the metafiles, those of rivals, and what the
papers print of both, from tools/papers.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.dev.markdown import markdown
from tools.dev.metafiles import ROOT
from tools.papers.tables import (
    counts_of_ours,
    equals_as_printed,
    omitted_rows,
    paper_rows,
    papers,
)

ZOO = {  # what papers call the figures of a task, by column
    'classification': {'Top-1': 'Top 1 Accuracy'},
    'detection': {'box AP': 'box AP', 'mask AP': 'mask AP'},
    'segmentation': {'mIoU': 'mIoU', 'multi-scale': 'mIoU(ms)'},
}
FOLDERS = dict(classification='classification', cifar100='')
FOLDERS |= dict.fromkeys(('sem_fpn', 'upernet', 'segformer'), 'segmentation')
SCHEDULE = re.compile(r'_(\d+[xek])_(coco|ade20k)$')
# Classifiers for other images or data, plain ViTs, and MaiT's with other masks.
VARIANT = re.compile('384|448|672|896|21k|ViT-[TSB]/|^vit_|_12l|_24l|_36l|_sch|_soft')


def task_of(config: str) -> str:
    """Return the task of a config or its folder; detection is what is left."""
    return FOLDERS.get(config.partition('/')[0], 'detection')


def method_of(config: str) -> str:
    """Return folder and schedule of a config of a detector or segmentor."""
    folder, _, name = config.partition('/')
    found = SCHEDULE.search(name)
    return f'{folder} {found[1]}' if found else ''


def ours(paper: Mapping, task: str) -> Iterator[tuple[str, str, dict]]:
    """Yield our networks that a paper prints accuracies of, with place and figures."""
    for folder, entries in paper['configs'].items():
        for entry in entries if task_of(folder) == task else ():
            for name, facts in entry['models'].items():
                config = f'{folder}/{name}'
                counts = counts_of_ours()[config]
                flops = counts['FLOPs'] / 1e9
                figures = {k: str(facts[k]) for k in ZOO[task].values() if k in facts}
                if figures:
                    figures['params'] = f'{counts["Parameters"] / 1e6:.1f}'
                    figures['flops'] = f'{flops:.{2 if flops < 20 else 0}f}'
                    yield config, facts.get('source', entry.get('source', '')), figures


def rivals(paper: Mapping, task: str) -> Iterator[tuple[str, str, str, dict]]:
    """Yield the networks of other authors that stand in a table beside ours."""
    for table, content in paper.get('results', {}).items():
        if task_of(content['beside']) != task:
            continue
        for line in content['rows'].splitlines():
            name, *values = line.split()
            figures = dict(zip(content['columns'], values, strict=True))
            note = content.get('notes', {}).get(name)
            place = f'{table} ({note})' if note else table
            yield method_of(content['beside']), name, place, figures


def short(place: str) -> str:
    """Return a place in a paper as it stands in a column of such."""
    return re.sub(r'^(Table |the paper)|(?<=^README) of .*', '', place)


def zoo(folder: Path, task: str) -> str:
    """Return our networks of a task beside the papers' rivals.

    Rows are sorted by method and FLOPs. Rivals that several papers quote are one row,
    with each figure that is printed. Links are relative to `folder`.
    """
    columns, rows = [*ZOO[task].values(), 'params', 'flops'], {}
    for paper in papers():
        first = next(iter(paper['configs'].values()))[0]
        link = f'[{first["name"].partition(" with")[0]}]({paper["url"]})'
        found = []
        for config, place, figures in ours(paper, task):
            path = os.path.relpath(ROOT / f'configs/{config}.py', folder)
            stem = SCHEDULE.sub('', config.partition('/')[2])
            found.append(
                (method_of(config), stem, f'**[{stem}]({path})**', place, figures)
            )
        for method, name, table, figures in rivals(paper, task):
            found.append((method, name, name, table, figures))
        for method, name, shown, place, figures in found:
            if VARIANT.search(name):
                continue
            row = rows.setdefault((method, shown), ({}, {}))
            for key in columns:
                if text := figures.get(key):
                    row[0].setdefault(key, {}).setdefault(float(text), text)
            row[1].setdefault(link, {})[short(place)] = None
    table = [[*['method'] * any(method for method, _ in rows), 'network', *ZOO[task]]]
    table[0] += ['params (M)', 'FLOPs (G)', 'printed in']
    for (method, shown), (figures, places) in sorted(
        rows.items(), key=lambda x: (x[0][0], float(next(iter(x[1][0]['flops']))), x[0])
    ):
        cells = [' / '.join(figures.get(key, {}).values()) for key in columns]
        sources = (f'{link} {", ".join(x)}'.strip() for link, x in places.items())
        table.append([*[method] * bool(method), shown, *cells, '; '.join(sources)])
    return markdown(table)


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
