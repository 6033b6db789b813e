"""Parameters and FLOPs of a model, counted from shapes on the meta device.

FLOPs are multiply-accumulates of convolutions, linear layers, matrix products and
Fourier transforms, and of what multi-scale deformable attention samples: five for each
channel of each point. Activations, softmax, pooling, resizing and RoIAlign count
nothing. The papers in `paper_tables.yml` do not agree on the transforms, on layer norms
and on what attention masks leave out, so these are kept apart: see `CONVENTIONS`.
PyTorch's `FlopCounterMode` counts (two per multiply-accumulate), with the rules of
`flop_rules` beside its own. An operator that nothing is known about is an error, not a
zero.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from mmattn.models.layers import MaskedAttention, neighborhood_attention

from .flop_rules import DENSE_RULES, NORM_RULES, TRANSFORMS
from .meta_shapes import META_SHAPES

PAPER_TABLES = Path(__file__).with_name('paper_tables.yml')
ROI_HEADS = ('StandardRoIHead', 'CascadeRoIHead', 'SparseRoIHead')
DOWNLOADS = ('init_cfg', 'pretrained')
CONVENTIONS = {
    'with transforms': ('products', 'transforms'),
    'without transforms': ('products',),
    'with transforms and norms': ('products', 'transforms', 'norms'),
    'with norms, without transforms': ('products', 'norms'),
    'mask-credited': ('products', 'transforms'),
    'dense': ('products', 'transforms', 'outside_masks'),
}
PARTS = ('products', 'transforms', 'norms', 'outside_masks')
MULTIPLIES_UNCOUNTED = {
    'aten::_native_multi_head_attention',
    'aten::_transformer_encoder_layer_fwd',
    'aten::_trilinear',
    'aten::addbmm',
    'aten::addmv',
    'aten::addr',
    'aten::dot',
    'aten::gru',
    'aten::lstm',
    'aten::mv',
    'aten::vdot',
}
MULTIPLIES_NOTHING = {
    'torchvision::nms',
    'torchvision::ps_roi_align',
    'torchvision::ps_roi_pool',
    'torchvision::roi_align',
    'torchvision::roi_pool',
}


@dataclass(frozen=True)
class Complexity:
    """Parameters and FLOPs (multiply-accumulates) of a module and what is inside it.

    Attributes:
        params: parameters.
        products: FLOPs of convolutions, linear layers and matrix products.
        transforms: FLOPs of Fourier transforms and of what is multiplied in one kernel
            with them, none of which counters see that know PyTorch's products alone.
        norms: 5 for each value that a layer norm has normalized; not in `flops`.
        outside_masks: what hard-masked heads would multiply beside their `products` if
            they were plain attention; not in `flops`, which credit the mask.
        children: by name.
    """

    params: int
    products: int
    transforms: int
    norms: int
    outside_masks: int
    children: Mapping[str, 'Complexity']

    @property
    def flops(self) -> int:
        return self.flops_in('with transforms')

    def flops_in(self, convention: str) -> int:
        """FLOPs in one of `CONVENTIONS`."""
        if convention not in CONVENTIONS:
            raise ValueError(
                f'convention must be one of {list(CONVENTIONS)}, got {convention!r}'
            )
        return sum(getattr(self, part) for part in CONVENTIONS[convention])

    def part(self, name: str) -> 'Complexity':
        """What is inside, by a name such as 'backbone.blocks.0'; '' is all of it."""
        part = self
        for child in filter(None, name.split('.')):
            if child not in part.children:
                raise ValueError(f'no part {child!r} of {name!r}')
            part = part.children[child]
        return part

    def walk(self, depth: int, name: str = '') -> Iterator[tuple[str, 'Complexity']]:
        """Yields (name, complexity) of `self` and of `depth` levels below it."""
        yield name, self
        if depth > 0:
            for child, complexity in self.children.items():
                yield from complexity.walk(
                    depth - 1, f'{name}.{child}' if name else child
                )


def count(
    model: nn.Module | Mapping, shape: tuple[int, int], *, device: str = 'meta'
) -> Complexity:
    """Counts one forward pass of one image in evaluation mode.

    A two-stage detector runs its box heads on as many regions as it keeps proposals and
    its mask heads on as many as it returns detections (1000 and 100 in the usual
    configs), Sparse R-CNN its heads on the proposals that it has learned; RoIAlign does
    not run. A segmentor runs its decode head. Auxiliary heads have parameters but no
    FLOPs. Neither have the spectra of kernels that a model keeps from one image to the
    next: where there are transforms, a second pass is counted. Masked attention is
    counted as its operator, also where a model runs its definition, which is dense, and
    neighborhood attention as the keys in each query's window, however large the tiles
    are that it is run in.

    Args:
        model: a module, which runs on the device it is on, or a config of mmengine's
            (a whole one, or its `model`), which is built and run on `device`.
        shape: height and width of the image, padding included.
        device: 'meta' takes no memory and no time. A model that reads numbers out of
            tensors, as mmdetection's Deformable DETR does, needs 'cpu'.

    Raises:
        NotImplementedError: what would run is not known: an operator without a rule, or
            a two-stage detector of another kind.
    """
    if not isinstance(model, nn.Module):
        model = build(model, device)
    task = _Task(model)
    image = torch.zeros(1, 3, *shape, device=next(model.parameters()).device)
    counter = FlopCounterMode(display=False, custom_mapping=NORM_RULES)
    dense = FlopCounterMode(display=False, custom_mapping=DENSE_RULES)
    with torch.no_grad(), _evaluation(task), _without_unseen_keys(task):
        with _RefuseUncounted():
            with counter:
                task(image)
            counted = counter.get_flop_counts().get('Global', {})
            if not TRANSFORMS.isdisjoint(counted):  # now with the spectra that it keeps
                with counter:
                    task(image)
            if not DENSE_RULES.keys().isdisjoint(counted):
                with dense:
                    task(image)
    dense_counts = dense.get_flop_counts()
    flops = {
        name: _by_part(counts, dense_counts.get(name, {}))
        for name, counts in counter.get_flop_counts().items()
    }
    total = flops.get('Global', _by_part({}, {}))
    return _collect(model, f'{_Task.__name__}.model', flops, total)


def build(cfg: Mapping, device: str = 'meta') -> nn.Module:
    """Builds a model from a config, without downloads; on meta without memory too."""
    import mmengine.registry as mm

    model_cfg = copy.deepcopy(cfg.get('model', cfg))
    _drop_keys(model_cfg, DOWNLOADS)
    hooks = []
    if device == 'meta':
        hooks.append(register_module_parameter_registration_hook(_to_meta))
    try:
        with mm.DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            return mm.MODELS.build(model_cfg).to(device)
    finally:
        for hook in hooks:
            hook.remove()


def paper_rows() -> list[dict]:
    """Return the rows of `paper_tables.yml` that have figures of ours.

    The head of the file says what the keys mean.
    """
    return [row for row in _all_paper_rows() if 'omitted' not in row]


def omitted_rows() -> list[dict]:
    """Return the rows of `paper_tables.yml` that give a reason instead of figures."""
    return [row for row in _all_paper_rows() if 'omitted' in row]


def equals_as_printed(figure: Mapping) -> bool:
    """Return whether `ours`, rounded as the paper rounds, is the figure it prints."""
    decimals = len(str(figure['paper']).partition('.')[2])
    return round(figure['ours'], decimals) == figure['paper']


def _all_paper_rows() -> list[dict]:
    import yaml

    return yaml.safe_load(PAPER_TABLES.read_text())


def _to_meta(module: nn.Module, name: str, param: nn.Parameter | None):
    """Moves parameters before their initialization, which then costs nothing.

    A `with torch.device('meta')` around the constructor would also catch the numbers
    that some models compute with tensors, such as their drop path rates.
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


@contextmanager
def _evaluation(model: nn.Module):
    """Evaluation mode; no parameter wants a gradient; then the state of before.

    Under `no_grad` alone some views of parameters still want one, and the counter's
    hooks then fail.
    """
    training = {module: module.training for module in model.modules()}
    trained = [param for param in model.parameters() if param.requires_grad]
    model.eval().requires_grad_(False)
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for param in trained:
            param.requires_grad_(True)


@contextmanager
def _without_unseen_keys(model: nn.Module):
    """Masked attention takes its operator, neighborhood attention its windows alone.

    The definition of the one multiplies all pairs, the tiles of the other more than a
    window.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, MaskedAttention) and module.backend == 'reference'
    ]
    for layer in layers:
        layer.backend = None
    windows = mock.patch.object(
        neighborhood_attention, 'neighborhood_attention', _windows
    )
    try:
        with windows:
            yield
    finally:
        for layer in layers:
            layer.backend = 'reference'


def _windows(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, **settings) -> Tensor:
    """`neighborhood_attention` of keys and values of zero, as many as each sees."""
    side = (rpb.shape[1] + 1) // 2
    q_rows = q.flatten(0, 3)[:, None]  # (B * H * W * M, 1, D)
    window = q.new_zeros(1, side**2, q.shape[-1]).expand(len(q_rows), -1, -1)
    return (q_rows @ window.transpose(1, 2) @ window).view(q.shape)


class _Task(nn.Module):
    """The part of a model's inference that is counted, called as one module."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, image: Tensor):
        model = self.model
        samples = [_data_sample(image.shape[-2:])]
        if hasattr(model, 'roi_head'):
            _run_two_stage(model, image)
        elif _wants_samples(getattr(model, 'decode_head', None)):
            # mmsegmentation runs it without samples in this mode, which fails.
            model.decode_head(model.extract_feat(image), samples)
        elif hasattr(model, 'data_preprocessor'):
            model(image, samples, mode='tensor')
        else:
            model(image)


def _wants_samples(head: nn.Module | None) -> bool:
    """Whether it is a head of masks, such as Mask2Former's."""
    if head is None:
        return False
    return 'batch_data_samples' in signature(head.forward).parameters


def _run_two_stage(model: nn.Module, image: Tensor):
    if type(model.roi_head).__name__ not in ROI_HEADS:
        raise NotImplementedError(
            f'a {type(model.roi_head).__name__} runs in a way that is not known here; '
            f'known are {", ".join(ROI_HEADS)}'
        )
    features = model.extract_feat(image)
    head, test_cfg = model.roi_head, model.test_cfg
    if type(head).__name__ == 'SparseRoIHead':
        proposals = model.rpn_head.init_proposal_features.weight[None]  # (1, N, C)
        extractors, heads = head.bbox_roi_extractor, head.bbox_head
        _run_on_regions(head, extractors, heads, proposals.shape[1], image, proposals)
        return
    if model.with_rpn:
        model.rpn_head(features)
    if head.with_bbox:
        num_rois = test_cfg.rpn.max_per_img
        _run_on_regions(head, head.bbox_roi_extractor, head.bbox_head, num_rois, image)
    if head.with_mask:
        num_rois = test_cfg.rcnn.max_per_img
        _run_on_regions(head, head.mask_roi_extractor, head.mask_head, num_rois, image)


def _run_on_regions(roi_head, extractors, heads, num_rois: int, image: Tensor, *inputs):
    if not isinstance(heads, nn.ModuleList):  # a cascade has one of each per stage
        extractors, heads = [extractors], [heads]
    for extractor, head in zip(extractors, heads, strict=True):
        size = extractor.roi_layers[0].output_size
        regions = image.new_zeros(num_rois, extractor.out_channels, *size)
        if roi_head.with_shared_head:
            regions = roi_head.shared_head(regions)
        head(regions, *inputs)


def _data_sample(shape: tuple[int, int]):
    from mmengine.structures import BaseDataElement

    names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    return BaseDataElement(metainfo={name: tuple(shape) for name in names})


def _by_part(counts: Mapping, dense_counts: Mapping) -> dict[str, int]:
    """Multiply-accumulates of the parts of `Complexity`, from an operator's FLOPs."""
    parts = dict.fromkeys(PARTS, 0)
    for operator, flops in counts.items():
        if operator in NORM_RULES:
            parts['norms'] += flops // 2
        elif operator in TRANSFORMS:
            parts['transforms'] += flops // 2
        else:
            parts['products'] += flops // 2
        if operator in DENSE_RULES:
            parts['outside_masks'] += (dense_counts[operator] - flops) // 2
    return parts


def _collect(
    module: nn.Module, name: str, flops: Mapping, total: Mapping | None = None
):
    children = {
        child_name: _collect(child, f'{name}.{child_name}', flops)
        for child_name, child in module.named_children()
    }
    # A container, such as a ModuleList, is never called: it has what its children have.
    if total is None:
        total = flops.get(name) or {
            part: sum(getattr(child, part) for child in children.values())
            for part in PARTS
        }
    params = sum(p.numel() for p in module.parameters())
    return Complexity(params, **total, children=children)


class _RefuseUncounted(TorchDispatchMode):
    """Runs the operators that the counter counts, after its decompositions."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket._qualified_op_name
        known = func._overloadpacket in flop_registry or (
            name not in MULTIPLIES_UNCOUNTED
            if func.namespace in ('aten', 'prim', 'prims')
            else name in MULTIPLIES_NOTHING
        )
        if not known:
            raise NotImplementedError(
                f'{name} has no FLOP rule; give it one with '
                'torch.utils.flop_counter.register_flop_formula'
            )
        if func in META_SHAPES and not kwargs and args[0].is_meta:
            return META_SHAPES[func](*args)
        return func(*args, **(kwargs or {}))
