"""Linear layers and activations that act on each pixel separately."""

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mmattn.ops import pointwise_linear
from mmattn.ops.common.derivatives import runs_eagerly
from mmattn.ops.common.recompute import recomputed
from mmattn.ops.common.star_relu import has_kernel

from .strips import pointwise_by_strips

PIECE = 1 << 17  # elements of a map in half precision whose float32 stays in the cache


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
        return self.fc2(recomputed(self.act, self.fc1(x)))


class _StarReLU(torch.autograd.Function):
    """StarReLU that saves one map for the backward, where autograd would save three."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        if has_kernel(x):
            out = torch.empty_like(x)
            torch.ops.mmattn.star_relu(x, None, scale, bias, out)
            return out
        return _scale_square(x.relu(), scale, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            hidden = x.relu()
            dscale, dbias = (
                product.sum(dtype=scale.dtype).view_as(scale)
                for product in (grad * hidden.square(), grad)
            )
            return 2 * scale.to(x.dtype) * hidden * grad, dscale, dbias
        if has_kernel(x):
            grad, dx = grad.contiguous(), torch.empty_like(x)
            sums = torch.ops.mmattn.star_relu(x, grad, scale, scale, dx)
            return dx, *sums.sum(0).to(scale.dtype).view(2, *scale.shape)
        product = x.relu().mul_(grad)
        dscale = _inner_product(product, x).to(scale.dtype).view_as(scale)
        dbias = grad.sum(dtype=scale.dtype).view_as(scale)
        # On a CPU a product of bfloat16 and a tensor of float32 is slow.
        factor = scale.item() if scale.device.type == 'cpu' else scale
        return product.mul_(2 * factor), dscale, dbias


def _is_opaque(x: Tensor) -> bool:
    """Return whether kernels cannot take a map, such as a sharded one.

    On a CPU they read the values of scale and bias, which fake tensors lack.
    """
    is_fake = type(x) is not Tensor and x.device.type == 'cpu'
    return is_fake or is_traceable_wrapper_subclass(x)


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
        if not runs_eagerly(x, self.scale, self.bias) or _is_opaque(x):
            # Compilers fuse this formula. A square would be a slow `Pow` in ONNX.
            x = x.relu()
            return self.scale * (x * x) + self.bias
        if not torch.is_grad_enabled():
            if has_kernel(x):
                torch.ops.mmattn.star_relu(x, None, self.scale, self.bias, x)
                return x
            return _scale_square(x.relu_(), self.scale, self.bias)
        return _StarReLU.apply(x, self.scale, self.bias)
