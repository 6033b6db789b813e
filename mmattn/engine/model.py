"""Build the model of a config, and tell its classes."""

import copy
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope
from mmengine.runner import CheckpointLoader
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..files.config_files import innermost_dataset
from ..weights.load import find_weights, load_weights, may_load_partially

DOWNLOADS = ('init_cfg', 'pretrained')


def build_model(
    cfg: Config, checkpoint: str | Path | None
) -> tuple[nn.Module, Mapping | None]:
    """Return the model of a config in evaluation mode, and the checkpoint's content.

    Args:
        cfg: config of mmdet, mmseg or mmpretrain.
        checkpoint: weights, by any name that `mmattn.weights.resolve` lists; None keeps
            the random ones.

    Raises:
        ValueError: the checkpoint does not match the model exactly, or with
            `partial_loads` not at all.
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
        partial = may_load_partially()
        report.check(str(checkpoint), exact=True, partial=partial, advice=None)
        report.log(str(checkpoint), MMLogger.get_current_instance())
    return model.requires_grad_(False).eval(), loaded


def unwrapped(model: nn.Module) -> nn.Module:
    """Return a model without what wraps it for several processes or for testing."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def class_names(cfg: Mapping, checkpoint: Mapping | None) -> dict:
    """Return `classes` and `palette` of the metadata; None where they are unknown.

    They come from the checkpoint, else from the data set of the config. A palette has
    one color for each class, or is left out.
    """
    dataset = innermost_dataset(cfg.get('test_dataloader'))
    sources = [((checkpoint or {}).get('meta') or {}).get('dataset_meta')]
    sources += [dataset.get('metainfo'), _metainfo(dataset, cfg.get('default_scope'))]
    found = {}
    for key in ('classes', 'palette'):
        values = [source[key] for source in sources if source and source.get(key)]
        found[key] = values[0] if values else None
    classes, palette = found['classes'], found['palette']
    if classes is not None:
        classes = [classes] if isinstance(classes, str) else list(map(str, classes))
    # mmdet also takes the name of a palette, and classes of a user have no colors.
    is_list = not isinstance(palette, str | None)
    if not is_list or (classes is not None and len(palette) != len(classes)):
        return dict(classes=classes, palette=None)
    palette = [list(map(int, color)) for color in palette]
    return dict(classes=classes, palette=palette)


def _metainfo(dataset: Mapping, scope: str | None) -> Mapping:
    """Return what the class of the data set says of it."""
    if not isinstance(dataset.get('type'), str):
        return {}
    with DATASETS.switch_scope_and_registry(scope) as registry:
        found = registry.get(dataset['type'])
    return getattr(found, 'METAINFO', {})


def build(cfg: Mapping, device: str = 'meta') -> nn.Module:
    """Build a model from a config without downloads, and without memory on 'meta'."""
    model_cfg = copy.deepcopy(cfg.get('model', cfg))
    _drop_keys(model_cfg, DOWNLOADS)
    hooks = []
    if device == 'meta':
        hooks.append(register_module_parameter_registration_hook(_to_meta))
    try:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            return MODELS.build(model_cfg).to(device)
    finally:
        for hook in hooks:
            hook.remove()


def _to_meta(module: nn.Module, name: str, param: nn.Parameter | None):
    """Move parameters before their initialization, which then costs nothing.

    `with torch.device('meta')` around the constructor would also move numbers that
    some models compute with tensors, such as their drop path rates.
    """
    if param is not None:
        return nn.Parameter(param.to('meta'), requires_grad=param.requires_grad)


def _drop_keys(cfg, keys: tuple[str, ...]):
    if isinstance(cfg, dict):
        for key in keys:
            cfg.pop(key, None)
        cfg = cfg.values()
    if not isinstance(cfg, str) and hasattr(cfg, '__iter__'):
        for value in cfg:
            _drop_keys(value, keys)
