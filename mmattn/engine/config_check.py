"""Check a model's config before it fails in a less obvious way."""

from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import signature

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS
from torch import nn

from mmattn.errors import UserError

from .model import unwrapped

SCOPES = 'mmattn', 'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg'
PASS_ON = 'mmdet', 'mmseg'  # their models pass `pretrained` on to the backbone


def check_scopes(cfg: dict, key: str):
    """Raise a ValueError with a guess if a `type` has a scope that looks misspelled."""
    for place, name in _types(cfg, key):
        scope = name.partition('.')[0]
        if scope == name or scope in {*SCOPES, *MODULE2PACKAGE, *MODELS.children}:
            continue
        close = get_close_matches(scope.lower(), SCOPES, n=1, cutoff=0.75)
        if close and scope.isidentifier() and find_spec(scope) is None:
            meant = close[0] + name.removeprefix(scope)
            raise UserError(
                f'{place}.type is {name!r}, but there is no package {scope!r}: did you '
                f'mean {meant!r}?'
            )


def _types(value, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if isinstance(value.get('type'), str):
            yield key, value['type']
        for name, item in value.items():
            yield from _types(item, f'{key}.{name}')
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _types(item, f'{key}.{index}')


def check_save_best(save_best, evaluator):
    """Raise an error if 'auto' would choose checkpoints by the metric of one class.

    mmengine takes the first metric that an evaluator returns. With `classwise=True`,
    mmdetection's metrics begin with the AP of each class.

    Raises:
        ValueError: the message says what to set.
    """
    names = [save_best] if isinstance(save_best, str) else save_best or []
    metrics = evaluator if isinstance(evaluator, list | tuple) else [evaluator]
    classwise = [
        metric
        for metric in metrics
        if isinstance(metric, Mapping)
        and metric.get('classwise')
        and 'Panoptic' not in str(metric.get('type'))  # keeps classes out
    ]
    if 'auto' not in names or not classwise:
        return
    metric = classwise[0].get('metric', 'bbox')
    metric = metric if isinstance(metric, str) else metric[-1]
    raise UserError(
        "default_hooks.checkpoint.save_best is 'auto', which takes the first metric, "
        'and with classwise=True that is the one of a class: set it to the metric '
        f'that you want, such as coco/{metric}_mAP'
    )


def check_topk(evaluator, model: nn.Module, key: str):
    """Raise an error if an accuracy takes more classes than the classifier has.

    Raises:
        ValueError: the message says what to set in `key`, the evaluator's.
    """
    head = getattr(unwrapped(model), 'head', None)
    num_classes = getattr(head, 'num_classes', None)
    for metric in evaluator if isinstance(evaluator, list | tuple) else [evaluator]:
        if not isinstance(metric, Mapping) or not isinstance(num_classes, int):
            continue
        topk = metric.get('topk', 1)
        most = topk if isinstance(topk, int) else max(topk)
        if 'Accuracy' in str(metric.get('type')) and most > num_classes:
            raise UserError(
                f'{key}.topk is {topk}, but model.head.num_classes is {num_classes}: '
                f'set topk=(1,) in {key}'
            )


def check_arguments(cfg: Mapping):
    """Raise an error if keys of a config belong to the backbone that it replaces.

    Args:
        cfg: the model's config; the whole config sets the default scope.

    Raises:
        UserError: the backbone does not accept a key; the message has the cure.
    """
    backbone = cfg.get('backbone')
    if not isinstance(backbone, Mapping) or not isinstance(backbone.get('type'), str):
        return
    with MODELS.switch_scope_and_registry(None) as registry:
        kind, model = (registry.get(part['type']) for part in (backbone, cfg))
    accepted = _parameters(kind) if kind is not None else None
    if accepted is None:
        return
    name = f'model.backbone ({backbone["type"]})'
    pretrained = cfg.get('pretrained')
    if pretrained is not None and 'pretrained' not in accepted:
        if model is not None and model.__module__.partition('.')[0] in PASS_ON:
            raise UserError(
                f'model.pretrained is {pretrained!r}, which {name} does not accept: '
                'set model.pretrained=None, and init_cfg of the backbone to weights of '
                'its own'
            )
    unknown = [key for key in backbone if key not in {*accepted, 'type', '_scope_'}]
    if unknown:
        raise UserError(
            f'{name} does not accept {", ".join(unknown)}: if the base config has them '
            'for another backbone, add _delete_=True to yours'
        )


def _parameters(kind: Callable) -> Collection[str] | None:
    """Return the names of a constructor's arguments, or None if it takes any."""
    parameters = signature(kind).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return parameters
