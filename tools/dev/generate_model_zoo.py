"""Write the metafiles of the configs and the tables of the READMEs, or check them.

    python -m tools.dev.generate_model_zoo
    python -m tools.dev.generate_model_zoo --check

The sources of a metafile are the papers' files, `tools/papers/*.yml`, the
configs, and the models, whose parameters and FLOPs are counted. A model with Fourier
transforms has a second count, `FLOPs without Transforms`; one with hard attention
masks has `FLOPs without Masks`.

A README asks for a table with the line `<!-- table of PATH -->`. PATH is relative to
the README. It is a metafile, the folder `tools/papers`, a folder with the
`summary.json` files that `mmattn report` writes, or a csv
file of `model.py`, `onnx_model.py` or `onnx_memory.py` in `tools/benchmark`.
"""

import argparse
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from mmengine.config import Config

import mmattn  # noqa: F401  makes mmcv's operators available
from mmattn.weights.names import published_files
from tools.dev.readme_tables import (
    csv_table,
    filled,
    markdown,
    run_table,
    write_pages,
)
from tools.papers.tables import equals_as_printed, omitted_rows, paper_rows, papers

ROOT = Path(__file__).resolve().parents[2]
GENERATED = '# tools/dev/generate_model_zoo.py writes this file from tools/papers.\n'
# The name of a model's second FLOPs, the part of `Complexity` that asks for them, and
# the convention that counts them.
SECOND_FLOPS = {
    'FLOPs without Transforms': ('transforms', 'without transforms'),
    'FLOPs without Masks': ('outside_masks', 'dense'),
}
COUNTED = ('Parameters', 'FLOPs', *SECOND_FLOPS)
TASKS = {
    'Top 1 Accuracy': 'Image Classification',
    'box AP': 'Object Detection',
    'mask AP': 'Instance Segmentation',
    'mIoU': 'Semantic Segmentation',
    'mIoU(ms)': 'Semantic Segmentation',
}
DATASETS = {'mmpretrain': 'ImageNet-1k', 'mmdet': 'COCO', 'mmseg': 'ADE20K'}
# Height and width at which FLOPs are counted. Classifiers use their training size.
SEGMENTORS_IMAGE_SIZE = [512, 2048]
METHODS_IMAGE_SIZES = {
    'cifar100': [32, 32],
    'deformable_detr': [800, 1333],
    'ddq': [800, 1333],
    'dino': [800, 1333],
    'mask2former': [512, 512],
    'segformer': [512, 512],
}
READ_NUMBERS = ('ddq',)  # what runs after its non-maximum suppression
# A measurement of this project needs all of these.
EVIDENCE = ('Training Log', 'Hardware', 'Commit')
_COMPLEXITIES = {}  # by structure, which several configs may share


class _Dumper(yaml.SafeDumper):
    """Indent lists, as all metafiles of OpenMMLab do."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)


class _OneLine(list):
    """Mark a list that is written in one line."""


_Dumper.add_representer(
    _OneLine,
    lambda dumper, value: dumper.represent_sequence(
        'tag:yaml.org,2002:seq', value, flow_style=True
    ),
)


def metafiles() -> list[Path]:
    """Return the metafiles that `model-index.yml` lists."""
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    return [ROOT / path for path in index['Import']]


def read_models(metafile: Path) -> list[dict]:
    return yaml.safe_load(metafile.read_text())['Models']


@functools.cache
def load(path: Path) -> Config:
    """Return a config, which its readers share and must not change."""
    return Config.fromfile(path)


def collections(folder: str) -> Iterator[tuple[dict, dict]]:
    """Yield the collections of a folder of configs with their papers."""
    for paper in papers():
        for collection in paper['configs'].get(folder, []):
            yield paper, collection


def image_size(path: Path) -> list[int]:
    """Return the height and width at which a config's FLOPs are counted."""
    if path.parent.name in METHODS_IMAGE_SIZES:
        return METHODS_IMAGE_SIZES[path.parent.name]
    cfg = load(path)
    if cfg.default_scope == 'mmpretrain':
        steps = cfg.train_dataloader.dataset.pipeline
        (crop,) = (step for step in steps if step.type == 'RandomResizedCrop')
        return [crop.scale, crop.scale]
    if cfg.default_scope == 'mmseg':
        return SEGMENTORS_IMAGE_SIZE
    steps = cfg.test_dataloader.dataset.pipeline
    (short,) = (min(step.scale) for step in steps if step.type == 'Resize')
    return [short, short * 8 // 5]  # 800 x 1280, as the papers count


def paper_results(facts: dict, dataset: str, source: str | None) -> list[dict]:
    """Return the metrics that others report, by task."""
    tasks = {}
    for metric in TASKS.keys() & facts.keys():
        tasks.setdefault(TASKS[metric], {})[metric] = facts[metric]
    order = list(TASKS)
    return [
        {
            'Task': task,
            'Dataset': dataset,
            'Source': facts.get('source', source),
            'Metrics': dict(sorted(found.items(), key=lambda m: order.index(m[0]))),
        }
        for task, found in sorted(
            tasks.items(), key=lambda t: min(map(order.index, t[1]))
        )
    ]


def collection_entry(paper: dict, collection: dict, folder: str) -> dict:
    first = next(iter(collection['models']))
    dataset = DATASETS[load(ROOT / f'configs/{folder}/{first}.py').default_scope]
    data = collection.get('training_data')
    return {
        'Name': collection['name'],
        'Metadata': {
            'Training Data': _OneLine(data) if data else dataset,
            'Architecture': collection['architecture'],
        },
        'Paper': {'Title': paper['title'], 'URL': paper['url']},
        'README': f'configs/{folder}/README.md',
    }


def published_urls() -> dict[str, str]:
    """Return the address of the published weights of configs, by `<folder>/<name>`."""
    files = published_files().values()
    return {each['figures']: each['url'] for each in files if 'figures' in each}


def model_entry(collection: dict, folder: str, name: str) -> dict:
    """Return the entry of a model, without its counts."""
    path = ROOT / f'configs/{folder}/{name}.py'
    cfg = load(path)
    facts = collection['models'][name]
    loop = cfg.train_cfg
    length = {'Epochs': loop.get('max_epochs'), 'Iterations': loop.get('max_iters')}
    entry = {
        'Name': name,
        'In Collection': collection['name'],
        'Config': f'configs/{folder}/{name}.py',
        'Metadata': {
            # mim takes lists for lists of names.
            'Image Size': '{} x {}'.format(*image_size(path)),
            **{key: value for key, value in length.items() if value},
            'Batch Size': cfg.auto_scale_lr.base_batch_size,
        },
    }
    if url := published_urls().get(f'{folder}/{name}'):
        entry['Published Weights'] = url
    dataset = DATASETS[cfg.default_scope]
    if results := paper_results(facts, dataset, collection.get('source')):
        entry['Paper Results'] = results
    return entry | facts.get('measured', {})


def metafile_text(metafile: Path, counts: dict[str, dict[str, int]]) -> str:
    """Return the text of a metafile, given the counts of its models by name."""
    folder = metafile.parent.name
    content = {'Collections': [], 'Models': []}
    for paper, collection in collections(folder):
        content['Collections'].append(collection_entry(paper, collection, folder))
        for name in collection['models']:
            entry = model_entry(collection, folder, name)
            size = {'Image Size': entry['Metadata'].pop('Image Size')}
            entry['Metadata'] = size | counts[name] | entry['Metadata']
            content['Models'].append(entry)
    return GENERATED + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000)


def counts_in(metafile: Path) -> dict[str, dict[str, int]]:
    """Return the counts that a metafile has, by the names of its models."""
    return {
        model['Name']: {k: v for k, v in model['Metadata'].items() if k in COUNTED}
        for model in read_models(metafile)
    }


def structure(cfg: Config) -> str:
    """Return the part of a config that decides on the counts, as a key."""
    parts = {key: part for key, part in cfg.model.items() if key != 'train_cfg'}
    backbone = {k: v for k, v in cfg.model.backbone.items() if k != 'drop_path_rate'}
    return repr(parts | dict(backbone=backbone))


def count(config: str) -> dict[str, int]:
    """Return the parameters and FLOPs of a config's model, as a metafile names them."""
    from mmattn.analysis import count

    path = ROOT / config
    cfg, shape = load(path), tuple(image_size(path))
    key = structure(cfg), shape
    if key not in _COMPLEXITIES:
        device = 'cpu' if path.parent.name in READ_NUMBERS else 'meta'
        _COMPLEXITIES[key] = count(cfg, shape, device=device)
    complexity = _COMPLEXITIES[key]
    counts = {'Parameters': complexity.params, 'FLOPs': complexity.flops}
    for field, (part, convention) in SECOND_FLOPS.items():
        if getattr(complexity, part):
            counts[field] = complexity.flops_in(convention)
    return counts


def metrics(model: dict, kind: str) -> dict[str, float]:
    return {
        name: value
        for result in model.get(kind, ())
        for name, value in result['Metrics'].items()
    }


def readmes() -> list[Path]:
    return [
        ROOT / 'docs/benchmarks/README.md',
        ROOT / 'docs/demos.md',
        ROOT / 'docs/export.md',
        ROOT / 'docs/model_zoo.md',
        ROOT / 'docs/mask_search.md',
        *(path.with_name('README.md') for path in metafiles()),
    ]


def model_table(metafile: Path, folder: Path) -> str:
    """Return a table with one row for each model.

    Papers' metrics have columns of their own. Links are relative to `folder`.
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
        row.append(metadata['Image Size'])
        row.append(f'{metadata["Parameters"] / 1e6:.2f}')
        for field in ('FLOPs', *second_flops):
            flops = metadata.get(field)
            row.append('' if flops is None else f'{flops / 1e9:.2f}')
        row += [str(metrics(model, kind).get(name, '')) for kind, name in columns]
        rows.append(row)
    return markdown(rows)


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


def table(path: Path, folder: Path) -> str:
    """Return the table that a README in `folder` asks for by a path."""
    if path.name == 'papers':
        return agreement_table()
    if path.is_dir():
        return run_table(path)
    if path.suffix == '.csv':
        return csv_table(path)
    return model_table(path, folder)


def with_tables(readme: Path) -> str:
    """Return a README's text, with the tables that it asks for filled in."""
    folder = readme.parent
    return filled(readme, {'table': lambda words: table(folder / words[1], folder)})


def problems(papers: list[dict]) -> list[str]:
    """Return how papers, configs, metafiles and the model index disagree."""
    found, listed = [], []
    index = set(metafiles())
    for path in set(ROOT.glob('configs/*/metafile.yml')) - index:
        found.append(f'{path.relative_to(ROOT)}: not in model-index.yml')
    for paper in papers:
        for folder, collections in paper['configs'].items():
            if ROOT / f'configs/{folder}/metafile.yml' not in index:
                found.append(f'configs/{folder}/metafile.yml: not in model-index.yml')
            for collection in collections:
                for name, facts in collection['models'].items():
                    listed.append(ROOT / f'configs/{folder}/{name}.py')
                    measured = facts.get('measured', {})
                    absent = [k for k in EVIDENCE if measured and k not in measured]
                    found += [f'{name}: a measurement without {key}' for key in absent]
                    keys = {
                        'recipe',
                        'drop_path',
                        'gpus',
                        'source',
                        'measured',
                    }
                    unknown = facts.keys() - keys - TASKS.keys()
                    found += [f'{name}: no metric {key!r}' for key in unknown]
    configs = {leaf for path in index for leaf in path.parent.glob('*.py')}
    for path in configs.symmetric_difference(listed):
        found.append(f'{path.relative_to(ROOT)}: of a paper or on disk, but not both')
    for path in {path for path in listed if listed.count(path) > 1}:
        found.append(f'{path.relative_to(ROOT)}: listed more than once')
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--check', action='store_true', help='write nothing')
    args = parser.parse_args()
    found = problems(papers())
    stale = []
    for metafile in metafiles() if not found else ():
        folder = metafile.parent.name
        names = [name for _, c in collections(folder) for name in c['models']]
        counts = {name: count(f'configs/{folder}/{name}.py') for name in names}
        text = metafile_text(metafile, counts)
        stale += write_pages({metafile: text}, args.check)
    for readme in readmes():
        stale += write_pages({readme: with_tables(readme)}, args.check)
    if args.check:
        found += [f'{path.relative_to(ROOT)}: is out of date' for path in stale]
    print('\n'.join(found))
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
