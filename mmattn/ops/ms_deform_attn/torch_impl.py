"""Multi-scale deformable attention by weighted sums of rows of a table of pixels.

A query and head sums the four pixels around each of its S = L * P samples, which is a
bag of 4 S rows. The gradients of locations and weights are linear in the products of
the output's gradient with those rows. Blocks of queries take turns, so that the
intermediate results of a block stay in the cache.
"""

import torch
from torch import Tensor

from ..checks import device_reason
from .torch_blocks import Problem
from .torch_products import weighted_sums
from .torch_sample_grads import SampleGrads
from .torch_value_grad import sum_pixels, sum_windows

BLOCK_SAMPLES = 1 << 16
# Heads are taken one by one from this many samples of a head, in all and per pixel.
SAMPLES_OF_A_HEAD = 1 << 14
SAMPLES_PER_PIXEL = 2


def unsupported(value: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(value, 'cpu', 'meta')


def forward(value, points, weights, reference, *, shapes):
    """Return the output (B, Q, M, D)."""
    B, Q, M, L, P, _ = points.shape
    D = value.shape[3]
    out = torch.empty(B, Q, M, D, dtype=value.dtype)
    problem = Problem.of_all_heads(value, points, weights, reference, shapes)
    for block in problem.blocks(BLOCK_SAMPLES):
        rows, counts = _four_pixels(block)
        bags = torch.arange(0, rows.numel(), 4 * L * P, dtype=rows.dtype)
        sums = weighted_sums(problem.table, rows.flatten(), bags, counts.flatten())
        out.view(B * Q, M, D)[block.queries] = sums.view(-1, M, D)
    return out


def backward(grad, value, points, weights, reference, *, shapes):
    """Return the gradients of value, points, weights and reference, or None for it."""
    _, Q, _, L, P, _ = points.shape
    tensors = value, points, weights, reference
    dtype = torch.promote_types(value.dtype, torch.float32)
    outputs = SampleGrads(
        torch.empty(points.shape, dtype=points.dtype),
        torch.empty(weights.shape, dtype=weights.dtype),
        None if reference is None else torch.zeros(reference.shape, dtype=dtype),
    )
    many = max(SAMPLES_OF_A_HEAD, SAMPLES_PER_PIXEL * value.shape[1])
    value_grad = _backward_of_each_head if Q * L * P >= many else _backward_of_all_heads
    value_grad = value_grad(outputs, grad, tensors, shapes).to(value.dtype)
    if reference is None:
        return value_grad, *outputs[:2], None
    return value_grad, *outputs[:2], outputs.reference.to(reference.dtype)


def _backward_of_all_heads(outputs, grad, tensors, shapes):
    """Return the gradient of value after sorting the pixels that samples read."""
    problem = Problem.of_all_heads(*tensors, shapes)
    outputs, grad = outputs.of_all_heads(), grad.flatten(0, 1).to(problem.table.dtype)
    R, M, S = problem.weights.shape
    rows = torch.empty(R, M, 4, S, dtype=problem.levels.first.dtype)
    counts = torch.empty(R, M, 4, S, dtype=grad.dtype)
    for block in problem.blocks(BLOCK_SAMPLES):
        q = block.queries
        rows[q], counts[q] = _four_pixels(block)
        outputs.add_block(problem, block, grad[q], rows[q])
    return sum_pixels(
        grad.flatten(0, 1),
        rows.flatten(0, 1).flatten(1),
        counts.flatten(),
        len(problem.table),
    ).view(tensors[0].shape)


def _backward_of_each_head(outputs, grad, tensors, shapes):
    """Return the gradient of value after sorting samples by the window they read."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    value_grad = torch.empty(tensors[0].shape, dtype=dtype)
    B, _, M, _ = value_grad.shape
    for image, head in ((b, m) for b in range(B) for m in range(M)):
        problem = Problem.of_a_head(*tensors, shapes, image, head)
        head_outputs = outputs.of_a_head(image, head)
        head_grad = grad[image, :, head].to(dtype).contiguous()
        R, _, S = problem.weights.shape
        rows = torch.empty(R, S, dtype=problem.levels.first.dtype)
        counts = torch.empty(4, R, S, dtype=dtype)
        for block in problem.blocks(BLOCK_SAMPLES):
            q, windows = block.queries, block.windows
            rows[q] = windows.rows[:, 0]
            windows.write_counts(block.attention, counts[:, q, None])
            head_outputs.add_block(
                problem, block, head_grad[q, None], windows.table_rows()
            )
        value_grad[image, :, head] = sum_windows(head_grad, rows, counts, shapes)
    return value_grad


def _four_pixels(block):
    """Return rows in the table and weights of the four pixels, (R, M, 4, S)."""
    rows = block.windows.table_rows()
    counts = block.attention.new_empty(rows.shape)
    block.windows.write_counts(block.attention, counts.unbind(2))
    return rows, counts
