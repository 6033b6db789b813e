"""Count the models behind the rows of `papers/*.yml`."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from torch import nn

from mmattn.analysis.flops import Complexity, build, count
from tools.dev.metafiles import image_size


def count_row(row: Mapping, root: Path) -> dict[str, int]:
    """Count a row's parameters, and its FLOPs where the paper prints them.

    Parameters alone need no forward pass.
    """
    given = root / row['config'], json.dumps(row.get('options', {}))
    if 'flops' not in row:
        part = row_model(*given).get_submodule(row.get('part', ''))
        return {'params': sum(p.numel() for p in part.parameters())}
    shape = tuple(row.get('shape') or image_size(given[0]))
    part = _complexity(*given, shape).part(row.get('part', ''))
    convention = row.get('convention', 'with transforms')
    return {'params': part.params, 'flops': part.flops_in(convention)}


@functools.cache
def row_model(config: Path, options: str = '{}') -> nn.Module:
    """Build the model of a config on the meta device, with options in JSON."""
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(json.loads(options))
    return build(cfg)


@functools.cache
def _complexity(config: Path, options: str, shape: tuple[int, int]) -> Complexity:
    return count(row_model(config, options), shape)
