"""Make the tables of the documentation, one function a table.

    python -m tools.dev.tables            # writes metafiles, model zoo and READMEs
    python -m tools.dev.tables --check    # writes nothing, and lists what would change

A page asks for a table with a line `<!-- KIND WORDS -->`. Pages to which the README
leads are read on GitHub, so that their tables are in git. The tables of other pages are
made when the documentation is built (`docs/_ext/tables.py`).

    table of PATH           models of a metafile, runs of a folder, speeds of a csv
                            file, or the agreement with tools/papers
    channels                the maps of every backbone in every size
    sizes CLASS             the presets of a backbone
    speed NAME ...          rows of the benchmarks of models
    runtimes                backbones in ONNX Runtime and OpenVINO beside PyTorch
    accelerate              detectors of transformers after `mmattn.accelerate`
    compiled                speeds of compiled backbones over eager ones
    recipes PATTERN ...     how the papers trained
    exhibits PAPER          what a paper shows, and ours beside it
    stock                   which stock configs run, by method
    weights                 published files that load
    starts                  public weights of related networks, and what is taken
    choose                  our backbones and their peers side by side
    families                backbones, their papers and their configs
    zoo TASK                networks of a task beside the papers' rivals, whose
                            pictures `python -m tools.dev.zoo_plot` draws
    printed PAPER NUMBER ... tables of a paper as printed
    speeds                  backbones over Swin-T, at two sizes and on two kinds of CPUs
    expected CSV ...        what small data sets give after some CPU minutes
"""

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import urlparse

import timm
import torch

import mmattn.models
from mmattn.models.backbones import __all__ as BACKBONES
from mmattn.weights.load import load_weights
from mmattn.weights.names import config_of, published_files
from tools.benchmark.measure import read_csv
from tools.dev.choose import choose
from tools.dev.diagrams import maps_of
from tools.dev.expected import expected
from tools.dev.markdown import filled, markdown
from tools.dev.metafiles import (
    ROOT,
    collections,
    count,
    metafile_text,
    metafiles,
    problems,
    read_models,
)
from tools.dev.speeds import (
    accelerated,
    compiled,
    runtimes,
    speed,
    speed_table,
    speeds,
)
from tools.dev.zoo import agreement_table, model_table, printed, zoo
from tools.papers.exhibits import exhibits
from tools.papers.tables import papers, recipes

DOCS = ROOT / 'docs'
BENCHMARKS = DOCS / 'benchmarks'
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


def starts(_: list[str]) -> str:
    """Return what each backbone takes of a related network's weights."""
    head = ['backbone', '`arch`', 'weights', 'tensors taken', 'of these resized']
    rows = [[*head, 'left in the file', 'new', 'share of parameters taken']]
    for name in BACKBONES:
        for arch, weights in getattr(mmattn.models, name).starts.items():
            with torch.device('meta'):
                model = getattr(mmattn.models, name)(arch)
                given = timm.create_model(weights.removeprefix('timm://')).state_dict()
            report = load_weights(model, given)
            parts = report.matched, report.resized, report.unexpected, report.missing
            row = [f'`{name}`', f"`'{arch}'`", f'`{weights}`', *map(len, parts)]
            rows.append([*row, f'{report.share():.1%}'])
    return markdown(rows)


def stock(_: list[str]) -> str:
    """Return which stock configs run, a line for each method."""
    head = 'package', 'method', 'configs', 'run', 'why others do not'
    rows = read_csv(DOCS / 'stock_configs.csv')
    return markdown([head, *(list(row.values())[:5] for row in rows)])


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


def table(path: Path, folder: Path) -> str:
    """Return the table that a README in `folder` asks for by a path."""
    if path.name == 'papers':
        return agreement_table()
    if path.is_dir():
        return run_table(path)
    if path.suffix == '.csv':
        return speed_table(path)
    return model_table(path, folder)


def tables_for(page: Path) -> dict[str, Callable[[list[str]], str]]:
    """Return the functions that make the tables of a page, by kind."""
    folder = page.parent
    return {
        'table': lambda words: table(folder / words[1], folder),
        'channels': channels,
        'sizes': sizes,
        'speed': speed,
        'accelerate': accelerated,
        'runtimes': runtimes,
        'compiled': compiled,
        'recipes': training_recipes,
        'exhibits': lambda words: exhibits(*words),
        'stock': stock,
        'weights': weights,
        'starts': starts,
        'choose': choose,
        'families': lambda words: families(folder),
        'zoo': lambda words: zoo(words, folder),
        'speeds': speeds,
        'printed': printed,
        'expected': expected,
    }


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
