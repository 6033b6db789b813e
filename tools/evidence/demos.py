"""Variants of the demos' configs with a shorter schedule."""

from collections.abc import Mapping

from claim import ROOT, Variant
from mmengine.config import Config


def demo_variant(
    config: str, iterations: int, options: Mapping[str, object] | None = None
) -> Variant:
    """Return a variant whose warmup and cosine end after `iterations`.

    Args:
        config: path of a config on `configs/_base_/schedules/demo.py`, relative to the
            checkout.
        iterations: number of iterations; only the last one is evaluated.
        options: further entries of the config to override.

    Raises:
        ValueError: the warmup of the config is as long.
    """
    begin = Config.fromfile(ROOT / config).param_scheduler[1].begin
    if iterations <= begin:
        raise ValueError(
            f'iterations must be longer than the warmup of {begin}, got {iterations}'
        )
    schedule = {
        'train_cfg.max_iters': iterations,
        'train_cfg.val_interval': iterations,
        'param_scheduler.1.end': iterations,
        'param_scheduler.1.T_max': iterations - begin,
        'default_hooks.checkpoint.interval': max(1, iterations // 4),
    }
    return Variant(config, schedule | dict(options or {}))
