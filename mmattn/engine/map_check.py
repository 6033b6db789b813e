"""Check by a forward that the maps of a backbone fit what reads them."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mmattn.errors import UserError
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.weights.report import list_names

# Parts of a model that read the maps of the neck, or else of the backbone.
HEADS = (
    'decode_head',
    'auxiliary_head',
    'panoptic_head',
    'rpn_head',
    'bbox_head',
    'head',
)
SIDES = 256, 224  # pixels; backbones that support one size mostly support 224
LARGE = 320, 352
MEANT = 'out_indices of the backbone to the maps that are meant'


def check_maps(cfg: Mapping, model: nn.Module):
    """Raise an error if the maps of a built model do not fit what reads them.

    The model runs on the meta device, which computes shapes alone. An error is a part
    that fails there and has other `in_channels` than the maps, or anchors, points or
    regions for maps of other strides. A model is left alone if its backbone supports no
    image of 256 or 224 pixels or of its `img_size`.

    Parameters of our backbones that serve only maps which nothing reads are frozen:
    they get no gradient, and several processes cannot train such parameters.

    Raises:
        UserError: the channels or strides differ; the message has both.
    """
    if not hasattr(model, 'backbone') or not hasattr(model, 'extract_feat'):
        return
    twin, maps, necks = _on_meta(model), [], []
    twin.backbone.register_forward_hook(lambda *call: maps.extend(_tensors(call[-1])))
    if (neck := getattr(twin, 'neck', None)) is not None:
        neck.register_forward_pre_hook(lambda *call: necks.append(call[0]))
    for image in _images(cfg.get('backbone') or {}):
        feats = _attempt(twin.extract_feat, image)
        if maps:
            break
    else:
        return
    source = _Source(model, 'backbone', maps)
    if (neck is None) != (not necks):
        return  # as in self-supervision, whose necks are read in other ways
    if feats is None:
        _check_channels('model.neck', cfg.get('neck') or {}, source)
        return
    if neck is not None:
        if (source := _Source(model, 'neck', _tensors(feats))).are_vectors:
            larger = _attempt(
                twin.extract_feat, image.new_zeros(1, image.shape[1], *LARGE)
            )
            if larger is None or _tensors(larger)[-1].shape != source.shapes[-1]:
                return  # the length of the vectors depends on the size of images
    outputs = [_check_head(*head, feats, source) for head in _heads(cfg, twin)]
    if not source.are_vectors:
        _check_strides(model, source, image.shape[-1])
    parts = {name for name, _ in model.named_children()}
    if neck is not None:
        outputs = [feats]
    elif not parts <= {*HEADS, 'backbone', 'data_preprocessor'}:
        return
    if isinstance(model.backbone, BaseBackbone) and all(x is not None for x in outputs):
        _freeze_unread(model.backbone, twin.backbone, outputs)


class _Source:
    """The part of a model that returns the maps which others read."""

    def __init__(self, model: nn.Module, name: str, maps: Sequence[Tensor]):
        self.name = f'model.{name} ({type(getattr(model, name)).__name__})'
        self.shapes = [x.shape for x in maps]
        self.channels = [shape[1] for shape in self.shapes]
        self.are_vectors = any(len(shape) != 4 for shape in self.shapes)

    def __str__(self) -> str:
        return f'{self.name} returns {len(self.shapes)} maps of {self.channels}'


def _on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of a model in evaluation mode, whose tensors have no memory."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        empty = tensor.to('meta')
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, tensor.requires_grad)
        memo[id(tensor)] = empty
    return copy.deepcopy(model, memo).eval()


def _images(backbone: Mapping) -> Iterator[Tensor]:
    """Yield images of sizes that a backbone may support, the likely ones first."""
    given = backbone.get('img_size')
    for side in (given, *SIDES) if given else SIDES:
        height, width = side if isinstance(side, Sequence) else (side, side)
        channels = backbone.get('in_channels', 3)
        yield torch.zeros(1, channels, height, width, device='meta')


def _attempt(run: Callable, *args) -> Any:
    """Return what a part of a model returns, or None if it fails.

    The caller looks for a reason that a user can mend. Any other failure is left to the
    real forward: some heads require more arguments, or read numbers out of tensors.
    """
    try:
        with torch.compiler.set_stance('force_eager'):
            return run(*args)
    except Exception:  # noqa: BLE001  the model may be anybody's
        return None


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor) and x.dim() > 1]


def _heads(cfg: Mapping, twin: nn.Module) -> Iterator[tuple[str, Mapping, nn.Module]]:
    for name in HEADS:
        part, head = cfg.get(name), getattr(twin, name, None)
        if isinstance(part, Mapping) and isinstance(head, nn.Module):
            yield f'model.{name}', part, head
        elif isinstance(part, Sequence) and isinstance(head, nn.ModuleList):
            for index, pair in enumerate(zip(part, head, strict=True)):
                yield f'model.{name}.{index}', *pair


def _check_head(key: str, part: Mapping, head: nn.Module, feats, source: _Source):
    """Return the outputs of a head; None if it does not run on the maps alone."""
    outputs = _attempt(head, feats)
    if outputs is not None:
        return outputs
    last = _tensors(feats)[-1]
    if key == 'model.head' and last.dim() == 4:
        if _attempt(head, (last.mean((2, 3)),)) is not None:
            raise UserError(
                f'{key} ({type(head).__name__}) reads vectors, but {source} channels: '
                "set model.neck=dict(type='GlobalAveragePooling')"
            )
    _check_channels(key, part, source, head)
    return None


def _check_channels(
    key: str,
    part: Mapping | Sequence[Mapping],
    source: _Source,
    head: nn.Module | None = None,
):
    """Raise an error if the `in_channels` of a part that fails are not the maps'."""
    if isinstance(part, Sequence):  # mmdetection chains necks
        key, part = f'{key}.0', part[0]
    given, index = part.get('in_channels'), getattr(head, 'in_index', None)
    if given is None:
        return
    fits = source.channels
    if index is not None:  # mmsegmentation's heads choose their maps
        chosen = index if isinstance(index, Sequence) else [index]
        if not all(-len(fits) <= i < len(fits) for i in chosen):
            raise UserError(
                f'{key}.in_index is {index}, but {source} channels: set {MEANT}'
            )
        fits = [fits[i] for i in chosen]
    if not isinstance(given, Sequence):
        # A classifier reads the last map, a detector's head all of them.
        if given == fits[-1] and (key == 'model.head' or set(fits) == {given}):
            return
        fits = fits[-1]
    elif list(given) == fits:
        return
    these = 'these' if fits == source.channels else fits
    raise UserError(
        f'{key}.in_channels is {given}, but {source} channels: set {key}.in_channels '
        f'to {these}, or {MEANT}'
    )


def _check_strides(model: nn.Module, source: _Source, side: int):
    """Raise an error if anchors, points or regions are for maps of other strides."""
    strides = [side // shape[-1] for shape in source.shapes]
    for key, meant, is_whole in _meant_strides(model):
        # Some strides are no power of 2, and the size of a map is rounded.
        count = len(meant) if is_whole else len(strides)
        pairs = zip(strides, meant, strict=False)
        fits = all(2 * a < 3 * b and 2 * b < 3 * a for a, b in pairs)
        if not fits or count != len(strides):
            raise UserError(
                f'{key} is for {len(meant)} maps of strides {meant}, but {source.name} '
                f'returns {len(strides)} maps of strides {strides}: set {MEANT}, or '
                'start_level and num_outs of the neck, or the strides'
            )


def _meant_strides(model: nn.Module) -> Iterator[tuple[str, list[int], bool]]:
    """Yield the strides that parts assume, and whether each map has one."""
    for name in ('roi_head.bbox_roi_extractor', 'roi_head.mask_roi_extractor'):
        for key, module in model.named_modules():
            if key.startswith(name) and hasattr(module, 'featmap_strides'):
                key = f'model.{key}.featmap_strides'
                yield key, list(module.featmap_strides), False
    for name in HEADS:
        head = getattr(model, name, None)
        for key, value in vars(head).items() if head is not None else ():
            if hasattr(value, 'num_levels') and hasattr(value, 'strides'):
                yield f'model.{name}.{key}', [max(s) for s in value.strides], True


def _freeze_unread(backbone: BaseBackbone, twin: nn.Module, outputs: Sequence):
    used = _variables(_tensors(outputs))
    unread = [
        name
        for name, param in twin.named_parameters()
        if param.requires_grad and param not in used
    ]
    for name, param in backbone.named_parameters():
        if name in unread:
            param.requires_grad_(False)
    if unread:
        print_log(
            f'{type(backbone).__name__}: nothing reads the maps that these parameters '
            f'serve, so they are frozen: {list_names(unread)}',
            logger='current',
        )


def _variables(outputs: Sequence[Tensor]) -> set[Tensor]:
    """Return the leaves of the graph of some outputs."""
    nodes, seen, found = [x.grad_fn for x in outputs], {None}, set()
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            nodes += [other for other, _ in node.next_functions]
            if hasattr(node, 'variable'):
                found.add(node.variable)
    return found
