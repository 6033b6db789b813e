"""Name the configs of the checkout, and load them."""

from pathlib import Path

from mmengine.config import Config

from tools.dev import metafiles
from tools.papers.tables import recipes

ROOT = Path(__file__).parents[2]

LEAVES = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
RECIPES = recipes()  # by `<folder>/<name>`


# Networks of other papers, which classes of ours build.
OTHER_NETWORKS = {'deit': 'mait', 'cait': 'masked_cait', 'dat_plus': 'dat_plus_plus'}


def config_id(path: Path) -> str:
    return f'{path.parent.name}/{path.stem}'


def load(name: str) -> Config:
    """Return the config `<folder>/<name>`, which tests share and must not change."""
    return metafiles.load(ROOT / 'configs' / f'{name}.py')
