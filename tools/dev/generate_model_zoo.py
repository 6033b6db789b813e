"""Counts the models in the metafiles, fills the tables of the READMEs, checks both.

    python tools/dev/generate_model_zoo.py
    python tools/dev/generate_model_zoo.py --check

A metafile is written by hand, but for `Parameters` and `FLOPs`, which a model with
Fourier transforms has a second time as `FLOPs without Transforms`, and one with hard
attention masks as `FLOPs without Masks`. Without a field `FLOPs`, parameters alone are
counted. A README asks for a table with the line `<!-- table of PATH -->`, its path
relative to the README: that of a metafile, of `paper_tables.yml`, or of a folder with
the `summary.json` files that `draw_run.py` writes.
"""

import argparse
import functools
import json
import os
import re
import sys
from pathlib import Path

import yaml
from mmengine.config import Config

import mmattn  # noqa: F401  makes mmcv's operators available

ROOT = Path(__file__).resolve().parents[2]
TABLE = re.compile(
    r'(?P<begin><!-- table of (?P<path>\S+) -->\n)'
    r'.*?'
    r'(?P<end><!-- end of table -->\n)',
    re.DOTALL,
)
# What a model's FLOPs are called a second time, where it has that part of `Complexity`,
# and the convention they are then counted by.
SECOND_FLOPS = {
    'FLOPs without Transforms': ('transforms', 'without transforms'),
    'FLOPs without Masks': ('outside_masks', 'dense'),
}
COUNTED = ('Parameters', 'FLOPs', *SECOND_FLOPS)
_COMPLEXITIES = {}  # by structure, of which several configs may have the same
# What a measurement of ours has to come with.
EVIDENCE = ('Training Log', 'Hardware', 'Commit')


def metafiles() -> list[Path]:
    """The metafiles that `model-index.yml` lists."""
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    return [ROOT / path for path in index['Import']]


def read_models(metafile: Path) -> list[dict]:
    return yaml.safe_load(metafile.read_text())['Models']


@functools.cache
def load(path: Path) -> Config:
    """A config, which several readers share: not to be changed."""
    return Config.fromfile(path)


def structure(cfg: Config) -> str:
    """What of a config decides on the counts: not how its model is trained."""
    parts = {key: part for key, part in cfg.model.items() if key != 'train_cfg'}
    backbone = {k: v for k, v in cfg.model.backbone.items() if k != 'drop_path_rate'}
    return repr(parts | dict(backbone=backbone))


def count(model: dict) -> dict[str, int]:
    """Parameters of a metafile's model, and FLOPs where it has a field for them."""
    from mmattn.analysis import count
    from mmattn.analysis.flops import build

    cfg = load(ROOT / model['Config'])
    metadata = model['Metadata']
    if 'FLOPs' not in metadata:
        return {'Parameters': sum(p.numel() for p in build(cfg).parameters())}
    shape = tuple(metadata['Image Size'])
    key = structure(cfg), shape
    if key not in _COMPLEXITIES:
        _COMPLEXITIES[key] = count(cfg, shape)
    complexity = _COMPLEXITIES[key]
    counts = {'Parameters': complexity.params, 'FLOPs': complexity.flops}
    for field, (part, convention) in SECOND_FLOPS.items():
        if getattr(complexity, part):
            counts[field] = complexity.flops_in(convention)
    return counts


def with_counts(text: str, counts: dict[str, dict[str, int]]) -> str:
    """A metafile's text with the counts, by model name, filled in."""
    lines, name = [], None
    for line in text.splitlines():
        if started := re.match(r'  - Name: (.+)', line):
            name = started[1]
        if field := re.match(rf' +({"|".join(COUNTED)}):', line):
            line = f'{field[0]} {counts[name][field[1]]}'
        lines.append(line)
    return '\n'.join(lines) + '\n'


def metrics(model: dict, kind: str) -> dict[str, float]:
    return {
        name: value
        for result in model.get(kind, ())
        for name, value in result['Metrics'].items()
    }


def readmes() -> list[Path]:
    return [
        ROOT / 'docs/demos.md',
        ROOT / 'docs/model_zoo.md',
        ROOT / 'docs/mask_search.md',
        *(path.with_name('README.md') for path in metafiles()),
    ]


def markdown(rows: list[list[str]]) -> str:
    """A table of which the first row is the head."""
    rows = [rows[0], ['---'] * len(rows[0]), *rows[1:]]
    return ''.join(f'| {" | ".join(row)} |\n' for row in rows)


def run_table(folder: Path) -> str:
    """One row for each run whose summary is in the folder."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob('*.json'))]
    names = list(dict.fromkeys(name for run in runs for name in run['metrics']))
    rows = [['run', *names, 'iterations', 'minutes', 'on']]
    for run in runs:
        values = [f'{run["metrics"].get(name, "")}' for name in names]
        facts = [str(run.get(key, '')) for key in ('iterations', 'minutes')]
        on = [run[key] for key in ('machine', 'torch') if key in run]
        rows.append([f'`{run["config"]}`', *values, *facts, ', torch '.join(on)])
    return markdown(rows)


def model_table(metafile: Path, folder: Path) -> str:
    """One row for each model; papers' metrics are in columns of their own.

    Links are relative to `folder`.
    """
    models = read_models(metafile)
    columns = dict.fromkeys(
        (kind, name)
        for kind in ('Results', 'Paper Results')
        for model in models
        for name in metrics(model, kind)
    )
    head = ['config', 'height x width', 'parameters (M)', 'FLOPs (G)']
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
        row.append('{} x {}'.format(*metadata['Image Size']))
        row.append(f'{metadata["Parameters"] / 1e6:.2f}')
        for field in ('FLOPs', *second_flops):
            flops = metadata.get(field)
            row.append('' if flops is None else f'{flops / 1e9:.2f}')
        row += [str(metrics(model, kind).get(name, '')) for kind, name in columns]
        rows.append(row)
    return markdown(rows)


def agreement_table() -> str:
    """Return how many figures of ours are the papers', in a row for each paper."""
    from mmattn.analysis import equals_as_printed, omitted_rows, paper_rows

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


def table(path: Path, folder: Path) -> str:
    """Return what a README in `folder` asks for by a path."""
    if path.is_dir():
        return run_table(path)
    if path.name == 'paper_tables.yml':
        return agreement_table()
    return model_table(path, folder)


def with_tables(readme: Path) -> str:
    """A README's text with the tables it asks for filled in."""

    def fill(found: re.Match) -> str:
        filled = table(readme.parent / found['path'], readme.parent)
        return f'{found["begin"]}\n{filled}\n{found["end"]}'

    return TABLE.sub(fill, readme.read_text())


def model_problems(model: dict, collections: set[str]) -> list[str]:
    """What in a metafile's entry does not agree with its config."""
    path = ROOT / model['Config']
    if not path.is_file():
        return [f'no config {model["Config"]}']
    cfg = load(path)
    metadata = model['Metadata']
    facts = {
        'Name': (model['Name'], path.stem),
        'Epochs': (metadata.get('Epochs'), cfg.train_cfg.get('max_epochs')),
        'Iterations': (metadata.get('Iterations'), cfg.train_cfg.get('max_iters')),
        'Batch Size': (metadata.get('Batch Size'), cfg.auto_scale_lr.base_batch_size),
    }
    found = [f'{key} is {a}, not {b}' for key, (a, b) in facts.items() if a != b]
    if model['In Collection'] not in collections:
        found.append(f'no collection {model["In Collection"]!r}')
    if 'Results' in model or 'Weights' in model:
        absent = [key for key in EVIDENCE if key not in {**metadata, **model}]
        found += [f'a measurement without {key}' for key in absent]
    return found


def problems() -> list[str]:
    """What is wrong in the metafiles and the model index, counts and tables aside."""
    found, listed = [], []
    on_disk = set(ROOT.glob('configs/*/metafile.yml'))
    for path in on_disk.symmetric_difference(metafiles()):
        found.append(f'{path.relative_to(ROOT)}: listed or on disk, but not both')
    for metafile in on_disk:
        content = yaml.safe_load(metafile.read_text())
        collections = {collection['Name'] for collection in content['Collections']}
        for model in content['Models']:
            listed.append(ROOT / model['Config'])
            found += [
                f'{metafile.relative_to(ROOT)}: {model["Name"]}: {problem}'
                for problem in model_problems(model, collections)
            ]
        missing = set(metafile.parent.glob('*.py')).difference(listed)
        found += [f'{path.relative_to(ROOT)}: in no metafile' for path in missing]
    for path in {path for path in listed if listed.count(path) > 1}:
        found.append(f'{path.relative_to(ROOT)}: listed more than once')
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--check', action='store_true', help='write nothing')
    args = parser.parse_args()
    found = problems()
    for metafile in metafiles():
        counts = {model['Name']: count(model) for model in read_models(metafile)}
        text = metafile.read_text()
        if not args.check:
            metafile.write_text(with_counts(text, counts))
        elif with_counts(text, counts) != text:
            found.append(f'{metafile.relative_to(ROOT)}: counts are out of date')
    for readme in readmes():
        if not args.check:
            readme.write_text(with_tables(readme))
        elif with_tables(readme) != readme.read_text():
            found.append(f'{readme.relative_to(ROOT)}: a table is out of date')
    print('\n'.join(found))
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
