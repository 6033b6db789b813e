"""Load weights into a model, report every tensor, and raise if too little matches.

mmengine loads the tensors that fit and logs the rest, so with a wrong prefix it trains
from noise. Here every tensor of the model and of the file is reported, under one of two
rules:

- *exact*, to resume and to test: every tensor of the model comes from the file, and
  every tensor of the file goes into the model.
- *fine-tuning*, for `load_from` and `init_cfg=dict(type='Pretrained')`: heads and necks
  may be missing, left over or of another shape. The backbone must match: no tensor has
  another shape in the file, and nine tenths of its elements come from the file. The
  share counts elements, so norms that detection adds weigh little. Without a
  `backbone`, the rule applies to the whole model.

`allow_partial_load = True` (`--allow-partial-load`) turns errors into warnings, unless
nothing matched at all.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import chain

import torch
from torch import nn

from mmattn.errors import UserError

from .layouts.classifier import to_classifier
from .names import SCHEME
from .read import allowing
from .report import (
    LOGGER,
    MIN_BACKBONE_SHARE,
    MIN_RELATED_SHARE,
    LoadReport,
    list_names,
)
from .resolve import read_named

# PyTorch 0.4.0 did not save this counter of batch norms, and it has no effect here.
NOT_REQUIRED = 'num_batches_tracked'
LONGEST_NAME = 500  # characters; the search for prefixes takes quadratic time
_PARTIAL: ContextVar[bool] = ContextVar('partial_loads', default=False)


def find_weights(checkpoint, source: str, device: str = 'cpu') -> dict:
    """Return the state dict of a checkpoint, without the prefix `module.`.

    The state dict is under `state_dict` (mm packages, timm), else under `model` (the
    papers' repositories), else the checkpoint itself. Averaged copies (`model_ema`,
    `state_dict_ema`, `ema_state_dict`) are ignored.

    Args:
        checkpoint: what was read.
        source: name of the checkpoint in errors.
        device: where it was read. Only on 'meta', tensors may lack their numbers.

    Raises:
        ValueError: there are no tensors, or there is something else by their side: a
            name that is no text, or a value that is no dense tensor in memory.
    """
    weights = checkpoint
    if isinstance(checkpoint, Mapping):
        for key in ('state_dict', 'model'):
            if isinstance(checkpoint.get(key), Mapping):
                weights = checkpoint[key]
                break
    if not isinstance(weights, Mapping) or not any(
        isinstance(value, torch.Tensor) for value in weights.values()
    ):
        held = type(checkpoint).__name__
        if isinstance(checkpoint, Mapping):
            held = f'a dict with the keys {list_names([*map(str, checkpoint)])}'
        raise UserError(
            f'{source} holds no weights: it is {held}, without tensors at the top or '
            'under `state_dict` or `model`'
        )
    _check_tensors(weights, source, device)
    if all(key.startswith('module.') for key in weights):
        weights = _below(weights, 'module.')
    return weights


def _check_tensors(weights: Mapping, source: str, device: str):
    for name, value in weights.items():
        if type(name) is not str or len(name) > LONGEST_NAME:
            raise UserError(
                f'{source}: names of weights must be texts of at most {LONGEST_NAME} '
                f'characters, got {str(name)[:50]!r} of type {type(name).__name__}'
            )
        if name.endswith('_extra_state'):
            continue
        if (fault := _fault(value, device)) is not None:
            raise UserError(f'{source}: {name[:100]!r} must be a dense tensor, {fault}')
    for name, kept in (getattr(weights, '_metadata', None) or {}).items():
        version = kept.get('version') if isinstance(kept, Mapping) else ''
        if type(name) is not str or type(version) not in (int, type(None)):
            raise UserError(
                f'{source}: the version of {str(name)[:50]!r} in its `_metadata` must '
                f'be a number, got {str(kept)[:50]!r}'
            )


def _fault(value, device: str) -> str | None:
    """Return why a value is no dense tensor whose numbers are in memory."""
    if not isinstance(value, torch.Tensor):
        return f'got {type(value).__name__}'
    kinds = value.is_nested, value.is_quantized, value.is_meta and device != 'meta'
    if any(kinds):
        return f'got a {("nested", "quantized", "meta")[kinds.index(True)]} one'
    if value.layout is not torch.strided:
        return f'got the layout {value.layout}'
    stored = value.untyped_storage().nbytes()
    if value.numel() * value.element_size() > stored:
        return f'got {stored} bytes for the shape {tuple(value.shape)}'
    return None


def _has_backbone(weights: Mapping) -> bool:
    return any(key.startswith('backbone.') for key in weights)


def _below(weights: Mapping, prefix: str) -> OrderedDict:
    """Return the weights below `prefix`, renamed, with the modules' version numbers."""
    below = OrderedDict(
        (key.removeprefix(prefix), value)
        for key, value in weights.items()
        if key.startswith(prefix)
    )
    versions = getattr(weights, '_metadata', None)
    if versions is not None:
        below._metadata = OrderedDict(
            ((key + '.').removeprefix(prefix).removesuffix('.'), value)
            for key, value in versions.items()
            if (key + '.').startswith(prefix)
        )
    return below


def _is_ours(module) -> bool:
    """Return whether a module is a backbone of `mmattn.models`."""
    return hasattr(module, 'convert_weights')


def load_weights(model: nn.Module, weights: Mapping) -> LoadReport:
    """Load the weights that fit in name and shape after the model's own hooks.

    A classifier on a backbone of ours also takes the weights of the authors' and timm's
    classifiers, whose names have no `backbone.`.
    """
    linear = getattr(getattr(model, 'head', None), 'fc', None)
    ours = _is_ours(getattr(model, 'backbone', None))
    if ours and linear is not None and not _has_backbone(weights):
        weights = to_classifier(weights, 'head.fc.')
    own = model.state_dict()
    report = LoadReport(
        {
            key: value.numel()
            for key, value in own.items()
            if isinstance(value, torch.Tensor) and NOT_REQUIRED not in key
        },
        list(weights),
    )
    # Shapes before a backbone or its layers change them, by the model's names.
    shapes = {key: getattr(value, 'shape', None) for key, value in weights.items()}

    def note(module, local, prefix, *_):
        if _is_ours(module):
            given = module.given_shapes
            shapes.update({prefix + key: shape for key, shape in given.items()})
        kinds = module.named_parameters, module.named_buffers
        held = (kind(recurse=False, remove_duplicate=False) for kind in kinds)
        for name, _ in chain.from_iterable(held):
            key = prefix + name
            if key not in own or not isinstance(local.get(key), torch.Tensor):
                continue
            new = own[key].shape
            old = local[key].shape
            if old == new or (not new and old == (1,)):
                first = shapes.get(key, old)
                if first != old:
                    report.resized[key] = tuple(first), tuple(new)
            else:
                report.mismatched[key] = tuple(old), tuple(new)
                del local[key]

    # These hooks run last, so they see the weights after the model's own hooks.
    handles = [
        module.register_load_state_dict_pre_hook(note) for module in model.modules()
    ]
    try:
        keys = model.load_state_dict(weights, strict=False)
    finally:
        for handle in handles:
            handle.remove()
    missing = set(keys.missing_keys)
    report.missing = [key for key in report.sizes if key in missing]
    report.matched = [key for key in report.sizes if key not in missing]
    report.unexpected = keys.unexpected_keys
    return report


def partial_loads(allow: bool = True) -> AbstractContextManager[None]:
    """Load weights that match in part within this context, with a warning.

    Args:
        allow: False changes nothing, also inside another `partial_loads`.
    """
    return allowing(_PARTIAL, allow)


def may_load_partially() -> bool:
    """Return whether weights may match in part, by `partial_loads`."""
    return _PARTIAL.get()


def initialize_from_checkpoint(module: nn.Module, name: str) -> LoadReport:
    """Read weights by any name of `local_checkpoint`, and `initialize` a module.

    Raises:
        ValueError: see `local_checkpoint`, `read_checkpoint` and `initialize`.
        OSError: see `local_checkpoint`.
    """
    return initialize(module, read_named(name), name)


def initialize(
    module: nn.Module,
    checkpoint,
    source: str,
    prefix: str | None = None,
    logger: logging.Logger = LOGGER,
) -> LoadReport:
    """Load weights as `init_cfg=dict(type='Pretrained', checkpoint=source)` does.

    The fine-tuning rule applies to our backbones. For one of their `starts`, half of
    the elements suffices. For any other module it is an error only if nothing matches,
    because mmengine's own configs load parts on purpose.

    Args:
        checkpoint: what was read.
        source: name of the checkpoint, as the user gave it.
        prefix: load the weights below it, such as 'backbone.'. None selects 'backbone.'
            for the file of a whole detector, segmentor or classifier: the module has no
            backbone of its own and none of the file's names, and the file has names
            below 'backbone.'.
        logger: gets the report.

    Raises:
        ValueError: there are no weights, none below `prefix`, or the rule is broken.
    """
    weights = find_weights(checkpoint, source)
    if prefix is None and not hasattr(module, 'backbone'):
        known = weights.keys() & module.state_dict().keys()
        if not known and _has_backbone(weights):
            prefix = 'backbone.'
            logger.info('%s is a whole model; using its backbone', source)
    if prefix is not None:
        prefix = prefix.removesuffix('.') + '.'
        below = _below(weights, prefix)
        if not below:
            raise UserError(
                f'{source} has no weights below the prefix {prefix!r}; it has '
                f'{list_names(list(weights))}'
            )
        weights = below
    report = load_weights(module, weights)
    report.log(source, logger)
    ours = _is_ours(module)
    starts = module.starts.values() if ours else ()
    related = source.removeprefix(SCHEME) in [s.removeprefix(SCHEME) for s in starts]
    report.check(
        source,
        exact=False,
        partial=_PARTIAL.get() or not ours,
        least=MIN_RELATED_SHARE if related else MIN_BACKBONE_SHARE,
    )
    return report
