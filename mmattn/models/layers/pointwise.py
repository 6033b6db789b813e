"""Linear layers and activations that act on each pixel separately."""

import torch
from torch import Tensor, nn

from mmattn.ops import pointwise_linear
from mmattn.ops.common import extension
from mmattn.ops.common.derivatives import is_transformed, runs_eagerly

from .strips import checkpoint_act, pointwise_by_strips

PIECE = 1 << 17  # elements of a map in half precision whose float32 stays in the cache
PART = 1 << 16  # elements that a thread of the compiled StarReLU takes at a time


class PointwiseLinear(nn.Linear):
    """`nn.Linear` through `ops.pointwise_linear`, with the same parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return pointwise_linear(x, self.weight, self.bias)


class PointwiseMlp(nn.Module):
    """timm's `Mlp` with `PointwiseLinear`: the same parameters and function."""

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        act_layer: type[nn.Module] = nn.GELU,
        bias: bool = True,
    ):
        super().__init__()
        self.fc1 = PointwiseLinear(embed_dims, hidden_dims, bias)
        self.act = act_layer()
        self.fc2 = PointwiseLinear(hidden_dims, embed_dims, bias)

    def forward(self, x: Tensor) -> Tensor:
        return pointwise_by_strips(self._apply_layers, x, self.fc1.out_features)

    def _apply_layers(self, x: Tensor) -> Tensor:
        return checkpoint_act(self.act, self.fc2, self.fc1(x))


class _StarReLU(torch.autograd.Function):
    """StarReLU that saves one map for the backward, where autograd would save three."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        if _is_compiled(x):
            return _run_compiled(x, None, scale, bias, torch.empty_like(x))[0]
        return _scale_square(x.relu(), scale, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, scale = ctx.saved_tensors
        if _is_compiled(x) and not torch.is_grad_enabled():
            dx, sums = _run_compiled(
                x, grad.contiguous(), scale, 0, torch.empty_like(x)
            )
            return dx, *(total.to(scale.dtype).view_as(scale) for total in sums)
        product = x.relu().mul_(grad)
        dscale = _inner_product(product, x).to(scale.dtype).view_as(scale)
        dbias = grad.sum(dtype=scale.dtype).view_as(scale)
        # On a CPU a product of bfloat16 and a tensor of float32 is slow.
        factor = scale.item() if scale.device.type == 'cpu' else scale
        return product.mul_(2 * factor), dscale, dbias


def _is_compiled(x: Tensor) -> bool:
    return (
        extension.UNAVAILABLE is None
        and x.device.type == 'cpu'
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and x.is_contiguous()
        and not is_transformed()
    )


def _run_compiled(x: Tensor, grad: Tensor | None, scale, bias, out: Tensor):
    """Return `out`, filled, and the gradients of scale and bias if `grad` is given."""
    sums = torch.empty(x.numel() // PART + 1, 2)
    numbers = float(scale), float(bias)
    torch.ops.mmattn_extension.star_relu(x, grad, *numbers, out, sums)
    return out, sums.sum(0)


def _scale_square(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Overwrite `x` with `scale * x^2 + bias`."""
    if x.device.type == 'cpu':  # a GPU would wait
        return torch.addcmul(bias.to(x.dtype), x, x, value=scale.item(), out=x)
    return torch.addcmul(bias, scale, x.square_(), out=x)


def _inner_product(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.flatten(), b.flatten()
    if a.dtype not in (torch.float16, torch.bfloat16):
        return torch.dot(a, b)  # needs no map of products
    if a.device.type != 'cpu':
        return (a * b.float()).sum()
    pairs = zip(a.split(PIECE), b.split(PIECE), strict=True)
    return sum(torch.dot(x.float(), y.float()) for x, y in pairs)


class StarReLU(nn.Module):
    """`scale * relu(x)^2 + bias` with learned scalars.

    From Yu et al., "MetaFormer Baselines for Vision",
    https://arxiv.org/abs/2210.13452, equation 4. If gradients are off, it overwrites
    `x`, which must be the fresh output of a layer: memory traffic limits the speed on
    large images.
    """

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        # Other types, such as fake tensors, have no values.
        if type(x) is not Tensor or not runs_eagerly(x, self.scale, self.bias):
            # Compilers fuse this formula. A square would be a slow `Pow` in ONNX.
            x = x.relu()
            return self.scale * (x * x) + self.bias
        if not torch.is_grad_enabled():
            if _is_compiled(x):
                return _run_compiled(x, None, self.scale, self.bias, x)[0]
            return _scale_square(x.relu_(), self.scale, self.bias)
        return _StarReLU.apply(x, self.scale, self.bias)
