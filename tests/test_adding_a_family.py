"""Walk docs/adding_a_family.md with a toy family in a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from family_checks import documents_problem

for name in ('mmengine', 'mmpretrain'):
    pytest.importorskip(name)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / 'docs/adding_a_family.md'
COPIED = (
    *('mmattn', 'configs', 'tools/dev', 'README.md', 'model-index.yml'),
    *('docs/citations.md', 'docs/model_zoo.md'),
    *('tests/config_files.py', 'tests/family_checks.py', 'tests/recipe_backbones.py'),
)
CONFIG = 'classification/toynet_t_300e_in1k'
BACKBONE = """\
from torch import nn
from mmattn.registry import MODELS
from .base_backbone import BaseBackbone

@MODELS.register_module()
class ToyNet(BaseBackbone):
    arch_zoo = {'tiny': dict(embed_dims=8)}
    def __init__(self, arch='tiny', drop_path_rate=0.0, init_cfg=None):
        super().__init__(init_cfg)
        self.conv = nn.Conv2d(3, self.resolve_arch(arch)['embed_dims'], 4, 4)
    def stages(self):
        return [self.conv]
    def forward(self, x):
        return (self.conv(x),)
"""
LEAF = """\
_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(type='mmattn.ToyNet', arch='tiny', drop_path_rate=0.0),
    head=dict(in_channels=8),
)
"""
PAPER = """\
title: A Toy
url: https://example.org/toy
cited_as: a toy
position: 99
recipes:
  adamw_300e: {optimizer: AdamW, lr: 1.0e-3, weight_decay: 0, batch: 9, length: 300}
configs:
  classification:
  - name: ToyNet
    architecture: [Convolution]
    source: Table 1
    models:
      toynet_t_300e_in1k: {recipe: adamw_300e, drop_path: 0.0, Top 1 Accuracy: 1.0}
"""
# By place on the page: the file, the text to add, and the text before which it goes;
# without that text the file is new.
ADDITIONS = {
    'mmattn/models/backbones/<family>.py': (
        'mmattn/models/backbones/toynet.py',
        BACKBONE,
        None,
    ),
    'mmattn/models/backbones/__init__.py': (
        'mmattn/models/backbones/__init__.py',
        'from .toynet import ToyNet\n',
        'from .vit',
    ),
    'mmattn/models/__init__.py': (
        'mmattn/models/__init__.py',
        '    ToyNet,\n',
        '    ViT,\n',
    ),
    'configs/<method>/<family>_<size>_<schedule>_<dataset>.py': (
        f'configs/{CONFIG}.py',
        LEAF,
        None,
    ),
    'mmattn/analysis/papers/<paper>.yml': (
        'mmattn/analysis/papers/toynet.yml',
        PAPER,
        None,
    ),
    'tests/recipe_backbones.py': (
        'tests/recipe_backbones.py',
        "    'toynet': 'ToyNet',\n",
        "    'datpp':",
    ),
    'tests/test_models/test_<family>.py': (
        'tests/test_models/test_toynet.py',
        '',
        None,
    ),
    'README.md': ('README.md', '| `ToyNet` |\n', '| `PVT`'),
    'docs/citations.md': ('docs/citations.md', '| `ToyNet` |\n', '| `PVT`'),
    'docs/models/<family>.md': (
        'docs/models/toynet.md',
        '<!-- sizes ToyNet -->\n',
        None,
    ),
}


def places() -> list[str]:
    """Return the places that the page lists."""
    return re.findall(r'^\d+\. `([^`]+)`', PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    """Copy what the page speaks of, with the toy family at all of its places."""
    root = tmp_path_factory.mktemp('family')
    unneeded = shutil.ignore_patterns('__pycache__', 'csrc', '.mim')
    for name in COPIED:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=unneeded)
        else:
            shutil.copy2(ROOT / name, target)
    return root


def with_addition(root: Path, place: str) -> tuple[str, str | None, str]:
    """Return a place's file, its text without the toy family, and that with it."""
    file, added, before = ADDITIONS[place]
    if before is None:
        return file, None, added
    text = (root / file).read_text()
    assert text.count(before) == 1, (file, before)
    return file, text, text.replace(before, added + before)


def test_families_are_tested_and_named():
    for path in (ROOT / 'mmattn/models/backbones').glob('*.py'):
        for cls in re.findall(r'register_module\(\)\nclass (\w+)', path.read_text()):
            assert documents_problem(ROOT, path.stem, cls) is None


def test_page_lists_at_most_ten_places():
    assert len(places()) <= 10
    assert places() == list(ADDITIONS)


@pytest.mark.slow  # 11 s
def test_each_place_is_needed_and_none_is_missing(checkout):
    """The first tree has the family everywhere, each of the others lacks one place."""
    files = [with_addition(checkout, place) for place in places()]
    for folder in ('tests/test_models', 'docs/models'):
        (checkout / folder).mkdir()
    for file, _, text in files:
        (checkout / file).write_text(text)
    trees = [[], *([[file, text]] for file, text, _ in files)]
    paths = [checkout, checkout / 'tests']
    done = subprocess.run(
        [
            sys.executable,
            'tests/family_checks.py',
            *('toynet', 'ToyNet', CONFIG),
        ],
        input=json.dumps(trees),
        cwd=checkout,
        env=os.environ | {'PYTHONPATH': os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    complete, *lacking = json.loads(done.stdout.splitlines()[-1])
    assert complete is None
    unneeded = [p for p, problem in zip(places(), lacking, strict=True) if not problem]
    assert not unneeded
