"""Count the parameters and FLOPs of a model from shapes on the meta device.

FLOPs are multiply-accumulates of convolutions, linear layers, matrix products and
Fourier transforms. Multi-scale deformable attention counts five for each channel of
each point that it samples. Activations, softmax, pooling, resizing and RoIAlign count
nothing. The papers in `papers/*.yml` do not agree on the transforms, on layer norms
and on what attention masks leave out, so these are kept apart: see `CONVENTIONS`.
PyTorch's `FlopCounterMode` counts, two for each multiply-accumulate, with the rules of
`flop_rules` in addition to its own. An operator without a rule is an error, not a zero.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from mmattn.errors import UserError, check_choice
from mmattn.ops.common.operator import REFERENCE

from ..engine.model import build as build
from .flop_rules import DENSE_RULES, NORM_RULES, TRANSFORMS
from .inference_pass import InferencePass
from .meta_shapes import META_SHAPES

aten = torch.ops.aten
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
    'mmattn::star_relu',
    'mmattn_extension::star_relu',
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
        transforms: FLOPs of Fourier transforms, and of products in one kernel with
            them. A counter that knows only PyTorch's products sees neither.
        norms: 5 for each value that a layer norm normalizes; not in `flops`.
        outside_masks: FLOPs that hard-masked heads would add to their `products` if
            they were plain attention. `flops` credit the mask, so they are not in it.
        children: submodules by name.
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
        """Return the FLOPs in one of `CONVENTIONS`."""
        check_choice('convention', convention, CONVENTIONS)
        return sum(getattr(self, part) for part in CONVENTIONS[convention])

    def part(self, name: str) -> 'Complexity':
        """Return a part by a name such as 'backbone.blocks.0'; '' is the whole."""
        part = self
        for child in filter(None, name.split('.')):
            if child not in part.children:
                raise UserError(f'no part {child!r} of {name!r}')
            part = part.children[child]
        return part

    def walk(self, depth: int, name: str = '') -> Iterator[tuple[str, 'Complexity']]:
        """Yield (name, complexity) of `self` and of `depth` levels below it."""
        yield name, self
        if depth > 0:
            for child, complexity in self.children.items():
                yield from complexity.walk(
                    depth - 1, f'{name}.{child}' if name else child
                )


def count(
    model: nn.Module | Mapping, shape: tuple[int, ...], *, device: str = 'meta'
) -> Complexity:
    """Count one forward pass of one image in evaluation mode.

    A two-stage detector runs its box heads on as many regions as it keeps proposals,
    and its mask heads on as many as it returns detections: 1000 and 100 in the usual
    configs. Sparse R-CNN runs its heads on its learned proposals. RoIAlign does not
    run. A segmentor runs its decode head.

    Auxiliary heads have parameters but no FLOPs. Spectra of kernels that a model keeps
    from one image to the next count nothing either: a model with transforms is counted
    in its second pass. An operator counts by its rule, also where a model runs the
    definition, which may multiply more.

    Args:
        model: a module, which runs on its own device, or a config of mmengine (a whole
            one, or its `model`), which is built and run on `device`.
        shape: height and width of the image, padding included, or channels, height and
            width, for a clip channels, frames, height and width. Images have 3 channels
            by default.
        device: 'meta' takes no memory and no time. A model that reads numbers other
            than sizes out of tensors needs 'cpu'.

    Raises:
        NotImplementedError: an operator has no rule, or the model is a two-stage
            detector of an unknown kind.
    """
    if not isinstance(model, nn.Module):
        model = build(model, device)
    task = InferencePass(model)
    channels = (3,) if len(shape) == 2 else ()
    device = next(model.parameters()).device
    image = torch.zeros(1, *channels, *shape, device=device)
    counter = FlopCounterMode(display=False, custom_mapping=NORM_RULES)
    dense = FlopCounterMode(display=False, custom_mapping=DENSE_RULES)
    with torch.no_grad(), _evaluation(task), _chosen_backends(model):
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
    return _collect(model, f'{InferencePass.__name__}.model', flops, total)


@contextmanager
def _evaluation(model: nn.Module):
    """Enter evaluation mode without gradients, and restore the state afterwards.

    Under `no_grad` alone some views of parameters still require gradients, which makes
    the counter's hooks fail.
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
def _chosen_backends(model: nn.Module):
    """Let layers that would run an operator's definition choose a backend.

    An operator has a rule. Its definition is plain products, and may multiply more.
    """
    layers = [m for m in model.modules() if getattr(m, 'backend', None) == REFERENCE]
    with ExitStack() as stack:
        for layer in layers:
            layer.backend = None
            stack.callback(setattr, layer, 'backend', REFERENCE)
        yield


def _by_part(counts: Mapping, dense_counts: Mapping) -> dict[str, int]:
    """Return multiply-accumulates by part of `Complexity`, from operators' FLOPs."""
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
    # A container, such as a ModuleList, is never called, so its children are added up.
    if total is None:
        total = flops.get(name) or {
            part: sum(getattr(child, part) for child in children.values())
            for part in PARTS
        }
    params = sum(p.numel() for p in module.parameters())
    return Complexity(params, **total, children=children)


class _RefuseUncounted(TorchDispatchMode):
    """Run operators after the counter's decompositions, and refuse unknown ones."""

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
        if func is aten._to_copy.default and _goes_to_meta(args[0], **kwargs):
            return args[0]
        return func(*_on_one_device(args), **(kwargs or {}))


def _goes_to_meta(x: Tensor, device: torch.device | None = None, **unused) -> bool:
    """Return whether integers would lose their values on the meta device.

    mmdetection's deformable detectors keep the sizes of their maps in tensors, and read
    them there.
    """
    goes = device is not None and torch.device(device).type == 'meta'
    return goes and not x.is_meta and not x.is_floating_point()


def _on_one_device(args: tuple) -> tuple:
    """Move integers that were kept to the meta device of the other arguments."""
    tensors = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
    if len({x.device for x in tensors if x.dim()}) < 2:
        return args
    return tree_map_only(Tensor, lambda x: x.to('meta'), args)
