"""Masked attention on CPUs in C++, through the compiled extension.

PyTorch's flash attention does the N^2 work of a soft mask, with all scores times alpha.
The kernels then correct the neighbors. In the backward flash attention gets the
corrected output and log-sum-exp. Where neighbors weigh much less than with their scores
times alpha, the subtraction would cancel digits, so the kernels compute such rows again.
"""

import torch
from torch import Tensor

from ..common import local_attention
from ..common.local_attention import Window


def unsupported(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return local_attention.unsupported(q, k, v)


def forward(q, k, v, bias, alpha, **stencil):
    """Return the output and each row's log of the sum of exponentials (B, M, N)."""
    window = _window(**stencil)
    if alpha is None:
        return local_attention.attend(q, k, v, bias, window)
    q_flash, k_flash, v_flash = _flash_inputs(q, k, v, alpha)
    out, dense_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_flash, k_flash, v_flash
    )
    out = _in_rows(out.transpose(1, 2))
    lse = local_attention.attend_softly(q, k, v, alpha, window, out, dense_lse)
    return out.to(q.dtype, memory_format=torch.contiguous_format), lse


def backward(grad, out, lse, q, k, v, bias, alpha, **stencil):
    """Return the gradients of q, k, v, bias and alpha."""
    window = _window(**stencil)
    if alpha is None:
        grads = local_attention.gradients(grad, lse, q, k, v, bias, window)
        return *grads, None
    g = _in_rows(grad.float())
    delta = (g * out).sum(-1).mT  # (B, M, N)
    lse_flash = lse.clone()
    lse_flash[..., : window.num_special] = torch.inf  # gives rows no weight
    *local, dalpha = local_attention.soft_gradients(
        grad, lse, q, k, v, alpha, window, delta, lse_flash
    )
    q_flash, k_flash, v_flash = _flash_inputs(q, k, v, alpha)
    dense = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g.transpose(1, 2), q_flash, k_flash, v_flash, out.float().transpose(1, 2),
        lse_flash, 0.0, False,
    )  # fmt: skip
    dense_q, dense_k, dense_v = (x.transpose(1, 2) for x in dense)
    dalpha += (q * dense_q).sum((0, 1, 3))
    dense = dense_q * alpha.float()[:, None], dense_k, dense_v
    grads = [(x + y).to(q.dtype) for x, y in zip(local, dense, strict=True)]
    return *grads, None, dalpha.to(alpha.dtype)


def _window(*, grid, kernel_size, num_special, mask_fill) -> Window:
    return Window(tuple(grid), kernel_size, num_special, mask_fill == 'zero', True)


def _flash_inputs(q, k, v, alpha):
    q, k, v = (_in_rows(x.float()) for x in (q, k, v))
    return [x.transpose(1, 2) for x in (q * alpha.float()[:, None], k, v)]


def _in_rows(x: Tensor) -> Tensor:
    """Return x with the D numbers of a head side by side.

    Flash attention reads them so, whatever the stride; PyTorch 2.10 does not check it.
    """
    return x if x.stride(-1) == 1 else x.contiguous()
