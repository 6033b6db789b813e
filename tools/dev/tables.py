"""Write the metafiles, and the tables of the documentation, one function a kind.

    python -m tools.dev.tables            # writes metafiles, model zoo and READMEs
    python -m tools.dev.tables --check    # writes nothing, and lists what would change

A page asks for a table with a line `<!-- KIND WORDS -->`; `tables_for` lists the kinds.
Pages to which the README leads are read on GitHub, so that their tables are in git. The
tables of other pages are made when the documentation is built (`docs/_ext/tables.py`).
"""

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlparse

import timm
import torch

import mmattn.models
from mmattn.models.backbones import __all__ as BACKBONES
from mmattn.weights.load import load_weights
from mmattn.weights.names import config_of, published_files
from tools.benchmark.measure import read_csv
from tools.dev.markdown import filled, markdown
from tools.dev.measured import RATIOS, choose, expected, ratios, speed_table
from tools.dev.metafiles import (
    ROOT,
    SECOND_FLOPS,
    collections,
    count,
    metafile_text,
    metafiles,
    problems,
    read_models,
)
from tools.dev.zoo import agreement_table, zoo
from tools.papers.tables import papers, recipes

DOCS = ROOT / 'docs'
COMMITTED = (
    *('model_zoo.md', 'weights.md', 'models/index.md', 'demos.md', 'mask_search.md'),
    *('accelerate.md', 'benchmarks/README.md', 'choose.md', 'finetune.md'),
)
OF_OURS = 'demo', 'evidence', 'strategies'  # configs of no paper
FAMILIES = {
    '`IViT`, `ViT`': (['2402.17507'], ('ivit_', 'vit_')),
    '`LiSANet`': (['2211.16289'], ('lisanet_',)),
    '`MaiT`, `HMaiT`, `MaskedCaiT`': (['2207.03006'], ('mait_', 'hmait_', 'cait_')),
    '`PVT`, `PVTv2`': (['2102.12122', '2106.13797'], ('pvt_',)),
    '`DAT`, `DATPlusPlus`': (['2201.00520', '2309.01430'], ('dat_',)),
}


def listed(values) -> str:
    """Return the entries of a preset as text."""
    many = isinstance(values, tuple | list)
    return ', '.join(map(str, values)) if many else str(values)


def channels() -> str:
    """Return the maps of every backbone in every size."""
    rows = [['backbone', '`arch`', 'channels', 'strides']]
    for name in BACKBONES:
        for arch in getattr(mmattn.models, name).arch_zoo:
            with torch.device('meta'):
                backbone = getattr(mmattn.models, name)(arch)
            maps = listed(backbone.out_channels), listed(backbone.strides)
            rows.append([f'`{name}`', f"`'{arch}'`", *maps])
    return markdown(rows)


def sizes(name: str) -> str:
    """Return the presets of a backbone."""
    presets = getattr(mmattn.models, name).arch_zoo
    keys = list(next(iter(presets.values())))
    rows = [['`arch`', *(f'`{key}`' for key in keys)]]
    for arch, preset in presets.items():
        rows.append([f"`'{arch}'`", *(listed(preset[key]) for key in keys)])
    return markdown(rows)


def families(folder: Path) -> str:
    """Return the backbones by paper, with links to the methods that have configs."""
    rows = [['backbone', 'paper', 'configs']]
    for names, (found_in, prefixes) in FAMILIES.items():
        methods = [
            f'[{parent.name}]({os.path.relpath(parent, folder)})'
            for parent in sorted((ROOT / 'configs').glob('[!_]*/'))
            if parent.name not in OF_OURS
            and any(path.stem.startswith(prefixes) for path in parent.glob('*.py'))
        ]
        links = ', '.join(f'[{x}](https://arxiv.org/abs/{x})' for x in found_in)
        rows.append([names, links, ', '.join(methods)])
    return markdown(rows)


def training_recipes(*patterns: str) -> str:
    """Return how the papers trained the matching configs."""
    rows = [['config', 'optimizer', 'learning rate', 'weight decay', 'batch', 'length']]
    shown = set()
    for name, recipe in recipes().items():
        folder, _, stem = name.partition('/')
        if not any(fnmatch.fnmatch(stem, pattern) for pattern in patterns):
            continue
        length = recipe['length']
        unit = 'iterations' if length >= 10_000 else 'epochs'
        row = [recipe[key] for key in ('optimizer', 'lr', 'weight_decay', 'batch')]
        row = [*map(str, row), f'{length:,} {unit}']
        if (folder, *row) not in shown:  # sizes of a model share a recipe
            shown.add((folder, *row))
            rows.append([f'`{name}`', *row])
    return markdown(rows)


def weights() -> str:
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


def starts() -> str:
    """Return what each backbone takes of a related network's weights."""
    head = ['backbone', '`arch`', 'weights', 'tensors taken', 'of these resized']
    rows = [[*head, 'left in the file', 'new', 'share of parameters taken']]
    for name in BACKBONES:
        for arch, given in getattr(mmattn.models, name).starts.items():
            with torch.device('meta'):
                model = getattr(mmattn.models, name)(arch)
                donor = timm.create_model(given.removeprefix('timm://'))
            report = load_weights(model, donor.state_dict())
            parts = report.matched, report.resized, report.unexpected, report.missing
            row = [f'`{name}`', f"`'{arch}'`", f'`{given}`', *map(len, parts)]
            rows.append([*row, f'{report.share():.1%}'])
    return markdown(rows)


def stock() -> str:
    """Return which stock configs run, a line for each method."""
    head = 'package', 'method', 'configs', 'run', 'why others do not'
    rows = read_csv(DOCS / 'stock_configs.csv')
    return markdown([head, *(list(row.values()) for row in rows)])


def run_table(folder: Path) -> str:
    """Return a table with one row for each summary of a run in the folder."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob('*.json'))]
    names = list(dict.fromkeys(name for run in runs for name in run['metrics']))
    rows = [['run', *names, 'iterations', 'minutes', 'on']]
    for run in runs:
        values = [f'{run["metrics"].get(name, "")}' for name in names]
        facts = [str(run.get(key, '')) for key in ('iterations', 'minutes')]
        on = [run[key] for key in ('machine', 'torch') if key in run]
        rows.append([f'`{run["config"]}`', *values, *facts, ', torch '.join(on)])
    return markdown(rows)


def metrics(model: Mapping, kind: str) -> dict[str, float]:
    results = (result['Metrics'] for result in model.get(kind, ()))
    return {name: value for found in results for name, value in found.items()}


def model_table(metafile: Path, folder: Path) -> str:
    """Return a table with one row for each model of a metafile.

    Papers' metrics have columns of their own. The size of images is a line below the
    table if all models have the same. Links are relative to `folder`.
    """
    models = read_models(metafile)
    shapes = {model['Metadata']['Image Size'] for model in models}
    columns = dict.fromkeys(
        (kind, name)
        for kind in ('Results', 'Paper Results')
        for model in models
        for name in metrics(model, kind)
    )
    counted = ['FLOPs', *SECOND_FLOPS]
    counted = [key for key in counted if any(key in x['Metadata'] for x in models)]
    head = ['config', *['height x width'] * (len(shapes) > 1), 'parameters (M)']
    head += ['FLOPs (G)', *(key.removeprefix('FLOPs ').lower() for key in counted[1:])]
    head += [f'{name}, paper' if 'Paper' in kind else name for kind, name in columns]
    rows = [head]
    for model in models:
        path = os.path.relpath(ROOT / model['Config'], folder)
        counts = model['Metadata']
        row = [f'[{model["Name"]}]({path})']
        row += [counts['Image Size']] * (len(shapes) > 1)
        row.append(f'{counts["Parameters"] / 1e6:.2f}')
        row += [f'{counts[x] / 1e9:.2f}' if x in counts else '' for x in counted]
        row += [str(metrics(model, kind).get(name, '')) for kind, name in columns]
        rows.append(row)
    caption = (
        f'\nFLOPs are those of {shapes.pop()} pixels.\n' if len(shapes) == 1 else ''
    )
    return markdown(rows) + caption


def table(folder: Path, of: str, path: str) -> str:
    """Return the table that a page in `folder` asks for by a path."""
    path = folder / path
    if path.name == 'papers':
        return agreement_table()
    if path.is_dir():
        return run_table(path)
    return speed_table(path) if path.suffix == '.csv' else model_table(path, folder)


def tables_for(page: Path) -> dict[str, Callable[..., str]]:
    """Return the functions that make the tables of a page, by kind."""
    folder = page.parent
    return {
        'table': partial(table, folder),  # of a metafile, a folder of runs, a csv file
        'channels': channels,
        'sizes': sizes,
        'recipes': training_recipes,
        'stock': stock,
        'weights': weights,
        'starts': starts,
        'families': partial(families, folder),
        'zoo': partial(zoo, folder),
        'choose': choose,
        'expected': expected,
    } | {kind: partial(ratios, kind) for kind in RATIOS}


def committed_pages() -> list[Path]:
    """Return the pages whose tables are in git."""
    readmes = (path.with_name('README.md') for path in metafiles())
    return [ROOT / 'README.md', *readmes, *(DOCS / name for name in COMMITTED)]


def with_tables(page: Path) -> str:
    """Return the text of a page with its tables."""
    return filled(page.read_text(), tables_for(page))


def write(path: Path, text: str, check: bool) -> list[str]:
    """Write a file, or with `check` return a line if it has another text."""
    if path.is_file() and path.read_text() == text:
        return []
    if check:
        return [f'{path.relative_to(ROOT)}: is out of date']
    path.write_text(text)
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--check', action='store_true', help='write nothing')
    args = parser.parse_args()
    found = problems(papers())
    for metafile in metafiles() if not found else ():
        folder = metafile.parent.name
        names = [name for _, c in collections(folder) for name in c['models']]
        counts = {name: count(f'configs/{folder}/{name}.py') for name in names}
        found += write(metafile, metafile_text(metafile, counts), args.check)
    for page in committed_pages():
        found += write(page, with_tables(page), args.check)
    print('\n'.join(found))
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
