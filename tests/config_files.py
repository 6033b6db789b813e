"""Name the configs of the checkout, load them and build what they train."""

from pathlib import Path

from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from torch import nn

from mmattn.analysis.flops import build
from mmattn.analysis.paper_tables import recipes
from tools.dev import generate_model_zoo as model_zoo

ROOT = Path(__file__).parents[1]

LEAVES = sorted((ROOT / 'configs').glob('[!_]*/*.py'))
BASES = sorted((ROOT / 'configs' / '_base_').rglob('*.py'))

RECIPES = recipes()  # by `<folder>/<name>`


def config_id(path: Path) -> str:
    return f'{path.parent.name}/{path.stem}'


def load(name: str) -> Config:
    """Return the config `<folder>/<name>`, which tests share and must not change."""
    return model_zoo.load(ROOT / 'configs' / f'{name}.py')


def parameter_groups(cfg: Config) -> tuple[nn.Module, dict[int, dict]]:
    """Build a config's model and return the group of each parameter, by its id."""
    init_default_scope(cfg.default_scope)
    model = build(cfg)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    groups = {
        id(parameter): group
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    return model, groups
