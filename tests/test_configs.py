"""Every config builds; metafiles and the tables of READMEs say what it is."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from mmengine.config import Config  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402
from mmattn.registry import MODELS  # noqa: E402

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / 'tools/dev'))
model_zoo = importlib.import_module('generate_model_zoo')

LEAVES = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
BASES = sorted((ROOT / 'configs' / '_base_').rglob('*.py'))
ENTRIES = {
    ROOT / model['Config']: model
    for metafile in model_zoo.metafiles()
    for model in model_zoo.read_models(metafile)
}
MAX_LEAF_LINES = 40


def config_id(path: Path) -> str:
    return f'{path.parent.name}/{path.stem}'


def walk(value):
    """Yields every dict inside a config."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from walk(item)


@pytest.mark.parametrize('path', LEAVES, ids=config_id)
def test_config_builds_with_the_counts_of_its_metafile(path):
    cfg = Config.fromfile(path)
    assert cfg.default_scope in ('mmdet', 'mmseg', 'mmpretrain')
    assert cfg.auto_scale_lr.enable is False
    assert cfg.auto_scale_lr.base_batch_size > 0
    if path in ENTRIES:
        metadata = ENTRIES[path]['Metadata']
        counted = model_zoo.count(ENTRIES[path])
        assert counted == {key: metadata[key] for key in counted}
    else:
        build(cfg)


@pytest.mark.parametrize('path', LEAVES, ids=config_id)
def test_leaf_is_short_and_inherits_relative_files(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LEAF_LINES
    assert '::' not in text
    for base in re.findall(r"'([^']+\.py)'", text):
        assert (path.parent / base).is_file()


@pytest.mark.parametrize('path', BASES, ids=config_id)
def test_base_has_no_base_and_no_backbone(path):
    cfg = Config.fromfile(path)
    assert '_base_' not in path.read_text()
    assert 'backbone' not in cfg.get('model', {})


@pytest.mark.parametrize('path', LEAVES + BASES, ids=config_id)
def test_types_of_ours_are_prefixed(path):
    types = {d['type'] for d in walk(Config.fromfile(path)._cfg_dict) if 'type' in d}
    assert not types & set(MODELS.module_dict)


def test_metafiles_agree_with_the_configs():
    assert model_zoo.problems() == []


@pytest.mark.parametrize(
    'change, problem',
    [
        ({'Name': 'other'}, 'Name is other, not ivit_t_3x_coco'),
        ({'Metadata': {'Epochs': 12, 'Batch Size': 16}}, 'Epochs is 12, not 36'),
        ({'In Collection': 'other'}, "no collection 'other'"),
        ({'Config': 'configs/none.py'}, 'no config configs/none.py'),
        (
            {'Weights': 'x.pth', 'Training Log': 'x', 'Hardware': 'x'},
            'a measurement without Commit',
        ),
    ],
    ids=['name', 'epochs', 'collection', 'config', 'evidence'],
)
def test_a_wrong_entry_of_a_metafile_is_reported(change, problem):
    entry = ENTRIES[ROOT / 'configs/mask_rcnn/ivit_t_3x_coco.py']
    known = {entry['In Collection']}
    assert model_zoo.model_problems(entry, known) == []
    assert model_zoo.model_problems(entry | change, known) == [problem]


@pytest.mark.parametrize('readme', model_zoo.readmes(), ids=config_id)
def test_readme_tables_are_up_to_date(readme):
    assert model_zoo.with_tables(readme) == readme.read_text(), (
        'run tools/dev/generate_model_zoo.py'
    )


def test_counts_and_table_are_written_where_they_belong(tmp_path):
    text = model_zoo.metafiles()[1].read_text()
    fields = model_zoo.COUNTED
    counts = {
        model['Name']: {
            field: i * 10**9 + j
            for j, field in enumerate(fields)
            if field in model['Metadata']
        }
        for i, model in enumerate(yaml.safe_load(text)['Models'], 1)
    }
    assert set().union(*counts.values()) == set(fields)
    emptied = re.sub(rf'({"|".join(fields)}):.*', r'\1:', text)
    filled = yaml.safe_load(model_zoo.with_counts(emptied, counts))
    for model in filled['Models']:
        assert model['Metadata'].items() >= counts[model['Name']].items()
    assert model_zoo.with_counts(text, counts) == model_zoo.with_counts(emptied, counts)
