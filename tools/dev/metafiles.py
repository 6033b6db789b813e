"""Make the metafiles of the configs from the papers' files, configs and models.

`python -m tools.dev.tables` writes them. The sources are `tools/papers/*.yml`, the
configs, and the models, whose parameters and FLOPs are counted. A model with Fourier
transforms has a second count, `FLOPs without Transforms`; one with hard attention
masks has `FLOPs without Masks`.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import yaml
from mmengine.config import Config

import mmattn  # noqa: F401  makes mmcv's operators available
from mmattn.apis.model_index import LOADER
from mmattn.weights.names import published_files
from tools.papers.tables import papers

ROOT = Path(__file__).resolve().parents[2]
GENERATED = '# python -m tools.dev.tables writes this file from tools/papers.\n'
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
FACTS = {'recipe', 'drop_path', 'gpus', 'source', 'measured'}  # beside metrics
_COMPLEXITIES = {}  # by structure, which several configs may share


class _Dumper(yaml.SafeDumper):
    """Indent lists, as all metafiles of OpenMMLab do."""

    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)


def metafiles() -> list[Path]:
    """Return the metafiles that `model-index.yml` lists."""
    index = yaml.load((ROOT / 'model-index.yml').read_text(), LOADER)
    return [ROOT / path for path in index['Import']]


def read_models(metafile: Path) -> list[dict]:
    return yaml.load(metafile.read_text(), LOADER)['Models']


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
    for metric, task in TASKS.items():
        if metric in facts:
            tasks.setdefault(task, {})[metric] = facts[metric]
    place = facts.get('source', source)
    return [
        {'Task': task, 'Dataset': dataset, 'Source': place, 'Metrics': found}
        for task, found in tasks.items()
    ]


def collection_entry(paper: dict, collection: dict, folder: str) -> dict:
    first = next(iter(collection['models']))
    dataset = DATASETS[load(ROOT / f'configs/{folder}/{first}.py').default_scope]
    return {
        'Name': collection['name'],
        'Metadata': {
            'Training Data': collection.get('training_data', dataset),
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


def problems(papers: list[dict]) -> list[str]:
    """Return how papers, configs, metafiles and the model index disagree."""
    found, listed = [], []
    index = set(metafiles())
    for paper in papers:
        for folder, collections in paper['configs'].items():
            for collection in collections:
                for name, facts in collection['models'].items():
                    listed.append(ROOT / f'configs/{folder}/{name}.py')
                    measured = facts.get('measured', {})
                    absent = [k for k in EVIDENCE if measured and k not in measured]
                    found += [f'{name}: a measurement without {key}' for key in absent]
                    unknown = facts.keys() - FACTS - TASKS.keys()
                    found += [f'{name}: no metric {key!r}' for key in unknown]
    files = set(ROOT.glob('configs/*/metafile.yml'))
    files |= {path.with_name('metafile.yml') for path in listed}
    for path in files - index:
        found.append(f'{path.relative_to(ROOT)}: not in model-index.yml')
    configs = {leaf for path in index for leaf in path.parent.glob('*.py')}
    for path in configs.symmetric_difference(listed):
        found.append(f'{path.relative_to(ROOT)}: of a paper or on disk, but not both')
    for path in {path for path in listed if listed.count(path) > 1}:
        found.append(f'{path.relative_to(ROOT)}: listed more than once')
    return sorted(found)
