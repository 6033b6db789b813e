"""Check a model's config before it fails in a less obvious way."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS
from torch import nn

from mmattn.errors import UserError

SCOPES = 'mmattn', 'mmcv', 'mmdet', 'mmengine', 'mmpretrain', 'mmseg'
# Necks that take a map for each of `in_channels` and return maps of `out_channels`.
NECKS = {
    'FPN',
    'PAFPN',
    'FPN_CARAFE',
    'ChannelMapper',
    'CSPNeXtPAFPN',
    'YOLOXPAFPN',
    'MSDeformAttnNeck',
}
POOLS = {'GlobalAveragePooling', 'GeneralizedMeanPooling'}  # keep the channels
# Parts of a model that read the maps of the neck, or else of the backbone.
HEADS = (
    'decode_head',
    'auxiliary_head',
    'panoptic_head',
    'rpn_head',
    'bbox_head',
    'head',
)


def check_scopes(cfg: dict, key: str):
    """Raise an error if a `type` in a config has a scope that looks misspelled.

    Raises:
        ValueError: a scope looks misspelled; the message names its key and a guess.
    """
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
    mmdetection's metrics begin with those of the classes.

    Args:
        save_best: argument of the checkpoint hook, a key of the metrics or several.
        evaluator: `val_evaluator` of a config.

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


def check_channels(cfg: Mapping, model: nn.Module):
    """Raise an error if the maps of a built model do not fit what reads them.

    The maps are those of `out_channels`, which all backbones of mmattn have. Only
    necks, heads and models of the mm packages and ours are checked, since others may
    read the maps in another way.

    Args:
        cfg: the model's config.
        model: what was built from it.

    Raises:
        ValueError: the channels or the number of maps differ; the message has both.
    """
    backbone, neck = getattr(model, 'backbone', None), cfg.get('neck')
    maps = getattr(backbone, 'out_channels', None)
    if not isinstance(maps, tuple) or not _is_known(model):
        return
    maps, source = list(maps), f'model.backbone ({type(backbone).__name__})'
    if neck is not None:
        built = getattr(model, 'neck', None)
        kind = type(built).__name__
        if kind not in NECKS | POOLS or not _is_known(built):
            return
        if kind in NECKS:
            # An FPN may leave out levels, whose channels it never reads.
            start = getattr(built, 'start_level', 0)
            used = slice(start, getattr(built, 'backbone_end_level', None))
            given = list(neck['in_channels'])
            if len(given) != len(maps) or given[used] != maps[used]:
                raise _misfit('model.neck', given, source, maps, maps)
            num_outs = neck.get('num_outs') or len(given)
            maps, source = [neck['out_channels']] * num_outs, f'model.neck ({kind})'
    for key in HEADS:
        heads, built = cfg.get(key), getattr(model, key, None)
        if isinstance(heads, Mapping):
            _check_head(f'model.{key}', heads, built, source, maps)
        elif isinstance(heads, list | tuple) and isinstance(built, nn.ModuleList):
            for index, pair in enumerate(zip(heads, built, strict=True)):
                _check_head(f'model.{key}.{index}', *pair, source, maps)


def _check_head(
    key: str, cfg: Mapping, head: nn.Module | None, source: str, maps: list[int]
):
    if not _is_known(head):
        return
    levels = getattr(getattr(head, 'prior_generator', None), 'num_levels', len(maps))
    if levels != len(maps):
        raise UserError(
            f'{key} ({type(head).__name__}) has anchors or points for {levels} maps, '
            f'but {source} returns {len(maps)} maps of {maps} channels: set '
            'out_indices of the backbone to the maps that are meant'
        )
    given, index = cfg.get('in_channels'), getattr(head, 'in_index', None)
    if given is None:
        return
    if index is not None:  # mmsegmentation's heads choose their maps
        chosen = index if isinstance(index, list | tuple) else [index]
        if not all(-len(maps) <= i < len(maps) for i in chosen):
            raise UserError(
                f'{key}.in_index is {index}, but {source} returns {len(maps)} maps: '
                'set out_indices of the backbone to the maps that are meant'
            )
        fits = [maps[i] for i in chosen]
    elif isinstance(given, list | tuple):
        fits = maps
    else:
        # A classifier reads the last map, a detector's head all of them.
        fits = maps[-1:] if key == 'model.head' else sorted(set(maps))
    if fits != (list(given) if isinstance(given, list | tuple) else [given]):
        fits = fits if isinstance(given, list | tuple) else fits[-1]
        raise _misfit(key, given, source, maps, fits)


def _misfit(
    key: str,
    given: Sequence[int] | int,
    source: str,
    maps: list[int],
    fits: list[int] | int,
) -> ValueError:
    return UserError(
        f'{key}.in_channels is {given}, but {source} returns {len(maps)} maps of '
        f'{maps} channels: set {key}.in_channels to '
        f'{"these" if fits == maps else fits}, or out_indices of the backbone to the '
        'maps that are meant'
    )


def _is_known(module: nn.Module | None) -> bool:
    return type(module).__module__.partition('.')[0] in SCOPES
