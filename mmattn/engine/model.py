"""Build the model of a config with the weights of a checkpoint, to run it."""

from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import CheckpointLoader
from torch import nn

from ..weights.load import find_weights, load_weights


def build_model(
    cfg: Config, checkpoint: str | Path | None
) -> tuple[nn.Module, Mapping | None]:
    """Return the model of a config in evaluation mode, and the checkpoint's content.

    Args:
        cfg: config of mmdet, mmseg or mmpretrain.
        checkpoint: weights, by any name that `mmattn.weights.resolve` lists; None keeps
            the random ones.

    Raises:
        ValueError: the checkpoint does not match the model exactly.
    """
    model_cfg = cfg.model.copy()
    if 'data_preprocessor' in cfg:  # mmpretrain's runner moves it too
        model_cfg.setdefault('data_preprocessor', cfg.data_preprocessor)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        model = MODELS.build(model_cfg)
    loaded = None
    if checkpoint is not None:
        loaded = CheckpointLoader.load_checkpoint(str(checkpoint), 'cpu')
        report = load_weights(model, find_weights(loaded, str(checkpoint)))
        report.check(str(checkpoint), exact=True, advice=None)
        report.log(str(checkpoint), MMLogger.get_current_instance())
    return model.requires_grad_(False).eval(), loaded
