"""Name the configs of the checkout and load them for the tests."""

from pathlib import Path

import generate_model_zoo as model_zoo
from mmengine.config import Config

ROOT = Path(__file__).parents[1]

LEAVES = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
BASES = sorted((ROOT / 'configs' / '_base_').rglob('*.py'))


def config_id(path: Path) -> str:
    return f'{path.parent.name}/{path.stem}'


def load(name: str) -> Config:
    """Return the config `<folder>/<name>`, which tests share and must not change."""
    return model_zoo.load(ROOT / 'configs' / f'{name}.py')
