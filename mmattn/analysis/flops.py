"""Parameters and FLOPs of a model, counted from shapes on the meta device.

FLOPs are multiply-accumulates of convolutions, linear layers and matrix products, the
convention of the papers in `paper_tables.yml`; norms, activations, softmax, pooling,
resizing and RoIAlign count nothing. PyTorch's `FlopCounterMode` counts (two per
multiply-accumulate). Importing this module registers with it the rules of our
operators, so that they count the same on every backend, and of the kernels that PyTorch
has no rule for. An operator that nothing is known about is an error, not a zero.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
import torchvision  # noqa: F401  defines the operators under torch.ops.torchvision
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    register_flop_formula,
)

import mmattn.ops  # noqa: F401  defines the operators under torch.ops.mmattn

PAPER_TABLES = Path(__file__).with_name('paper_tables.yml')
ROI_HEADS = ('StandardRoIHead', 'CascadeRoIHead')
DOWNLOADS = ('init_cfg', 'pretrained')

aten = torch.ops.aten
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
    """Parameters and FLOPs (multiply-accumulates) of a module and what is inside it."""

    params: int
    flops: int
    children: Mapping[str, 'Complexity']

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
    configs); RoIAlign does not run. A segmentor runs its decode head. Auxiliary heads
    have parameters but no FLOPs.

    Args:
        model: a module, which runs on the device it is on, or a config of mmengine's
            (a whole one, or its `model`), which is built and run on `device`.
        shape: height and width of the image, padding included.
        device: 'meta' takes no memory and no time. A model that reads numbers out of
            tensors, as Deformable DETR does, needs 'cpu'.

    Raises:
        NotImplementedError: what would run is not known: an operator without a rule, or
            a two-stage detector of another kind.
    """
    if not isinstance(model, nn.Module):
        model = build(model, device)
    task = _Task(model)
    image = torch.zeros(1, 3, *shape, device=next(model.parameters()).device)
    with (
        torch.no_grad(),
        _evaluation(task),
        _RefuseUncounted(),
        FlopCounterMode(display=False) as counter,
    ):
        task(image)
    flops = {
        name: sum(n.values()) // 2 for name, n in counter.get_flop_counts().items()
    }
    return _collect(
        model, f'{_Task.__name__}.model', flops, counter.get_total_flops() // 2
    )


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
    """The rows of `paper_tables.yml`; its head says what the keys mean."""
    import yaml

    return yaml.safe_load(PAPER_TABLES.read_text())


def _to_meta(module: nn.Module, name: str, param: nn.Parameter | None):
    """Moves parameters before their initialisation, which then costs nothing.

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


class _Task(nn.Module):
    """The part of a model's inference that is counted, called as one module."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, image: Tensor):
        model = self.model
        if hasattr(model, 'roi_head'):
            _run_two_stage(model, image)
        elif hasattr(model, 'data_preprocessor'):
            model(image, [_data_sample(image.shape[-2:])], mode='tensor')
        else:
            model(image)


def _run_two_stage(model: nn.Module, image: Tensor):
    if type(model.roi_head).__name__ not in ROI_HEADS:
        raise NotImplementedError(
            f'a {type(model.roi_head).__name__} runs in a way that is not known here; '
            f'known are {", ".join(ROI_HEADS)}'
        )
    features = model.extract_feat(image)
    if model.with_rpn:
        model.rpn_head(features)
    head, test_cfg = model.roi_head, model.test_cfg
    if head.with_bbox:
        num_rois = test_cfg.rpn.max_per_img
        _run_on_regions(head, head.bbox_roi_extractor, head.bbox_head, num_rois, image)
    if head.with_mask:
        num_rois = test_cfg.rcnn.max_per_img
        _run_on_regions(head, head.mask_roi_extractor, head.mask_head, num_rois, image)


def _run_on_regions(roi_head, extractors, heads, num_rois: int, image: Tensor):
    if not isinstance(heads, nn.ModuleList):  # a cascade has one of each per stage
        extractors, heads = [extractors], [heads]
    for extractor, head in zip(extractors, heads, strict=True):
        size = extractor.roi_layers[0].output_size
        regions = image.new_zeros(num_rois, extractor.out_channels, *size)
        if roi_head.with_shared_head:
            regions = roi_head.shared_head(regions)
        head(regions)


def _data_sample(shape: tuple[int, int]):
    from mmengine.structures import BaseDataElement

    names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
    return BaseDataElement(metainfo={name: tuple(shape) for name in names})


def _collect(module: nn.Module, name: str, flops: Mapping, total: int | None = None):
    children = {
        child_name: _collect(child, f'{name}.{child_name}', flops)
        for child_name, child in module.named_children()
    }
    # A container, such as a ModuleList, is never called: it has what its children have.
    if total is None:
        total = flops.get(name, sum(child.flops for child in children.values()))
    return Complexity(sum(p.numel() for p in module.parameters()), total, children)


class _RefuseUncounted(TorchDispatchMode):
    """Sees the operators that the counter executes, after its decompositions."""

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
        return func(*args, **(kwargs or {}))


def _landmark_attention_flops(
    q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
):
    """Two maps of N x L for M heads: scores, product with v, and two mixings each."""
    B, N, M, D = q
    L = q_landmarks[1]
    mixing = sum(prod(w) for w in (w1_q, w2_q, w1_k, w2_k) if w is not None)
    return 2 * B * N * L * (4 * M * D + mixing)


@register_flop_formula(torch.ops.mmattn.landmark_attention)
def _(*args, **kwargs) -> int:
    return _landmark_attention_flops(*args[:9])


@register_flop_formula(torch.ops.mmattn.landmark_attention_backward)
def _(grad, context, statistics, *args, **kwargs) -> int:
    """Two products for each of the forward's; recomputed ones are not counted."""
    return 2 * _landmark_attention_flops(*args[:9])


@register_flop_formula(torch.ops.torchvision.deform_conv2d)
def _(x, weight, *args, out_shape=None, **kwargs) -> int:
    return 2 * prod(out_shape) * prod(weight[1:])


def _sdpa_flops(q, k, v, *args, **kwargs) -> int:
    return 2 * prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


for _name in (
    '_scaled_dot_product_flash_attention_for_cpu',
    '_scaled_dot_product_fused_attention_overrideable',
    '_scaled_dot_product_attention_math_for_mps',
):
    if hasattr(aten, _name) and getattr(aten, _name) not in flop_registry:
        register_flop_formula(getattr(aten, _name))(_sdpa_flops)
