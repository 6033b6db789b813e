"""Gradients of points, weights and references of a block of queries."""

from typing import NamedTuple

import torch
from torch import Tensor

from .torch_blocks import Block, Problem
from .torch_products import sampled_products


class SampleGrads(NamedTuple):
    """Hold the gradients of a problem, in its shapes or those of the operator."""

    points: Tensor  # (R, M, S, 2), written
    weights: Tensor  # (R, M, S), written
    reference: Tensor | None  # (R, L or 1, 2 or 4), added to

    def of_all_heads(self) -> 'SampleGrads':
        """Return views in the shapes of the problem of all heads."""
        reference = None if self.reference is None else self.reference.flatten(0, 1)
        return SampleGrads(
            self.points.flatten(0, 1).flatten(2, 3),
            self.weights.flatten(0, 1).flatten(2),
            reference,
        )

    def of_a_head(self, image: int, head: int) -> 'SampleGrads':
        """Return views in the shapes of the problem of one head."""
        only = slice(head, head + 1)
        return SampleGrads(
            self.points[image, :, only].flatten(2, 3),
            self.weights[image, :, only].flatten(2),
            None if self.reference is None else self.reference[image],
        )

    def add_block(self, problem: Problem, block: Block, grad: Tensor, rows: Tensor):
        """Add the gradients of a block, by products with the pixels of each sample.

        Args:
            problem: the problem that the gradients are of.
            block: a block of its queries.
            grad: gradient of the output, shape (R, M, D).
            rows: indices of the pixels in the table, shape (R, M, 4, S).
        """
        windows, attention, q = block.windows, block.attention, block.queries
        products = sampled_products(
            grad.flatten(0, 1), problem.table, rows.flatten(0, 1).flatten(1)
        )
        above_left, above_right, below_left, below_right = products.view_as(
            rows
        ).unbind(2)
        (near_x, near_y), (far_x, far_y) = windows.near, windows.far
        above = (above_left * near_x).addcmul_(above_right, far_x)
        below = (below_left * near_x).addcmul_(below_right, far_x)
        left = (above_left * near_y).addcmul_(below_left, far_y)
        right = (above_right * near_y).addcmul_(below_right, far_y)
        grad_attention = (above * near_y).addcmul_(below, far_y)
        (near_x, near_y), (far_x, far_y) = windows.slopes()
        places = torch.empty_like(windows.near)  # gradient, (2, R, M, S)
        torch.mul(left, near_x, out=places[0]).addcmul_(right, far_x)
        torch.mul(above, near_y, out=places[1]).addcmul_(below, far_y)
        places.mul_(attention)
        for i, (x, scale) in enumerate(zip(places, block.scale, strict=True)):
            torch.mul(x, scale, out=self.points[q][..., i])
        if problem.reference is None:
            self.weights[q] = grad_attention
            return
        mean = (grad_attention * attention).sum(-1, keepdim=True)
        self.weights[q] = grad_attention.sub_(mean).mul_(attention)
        self._add_reference(problem, block, places)

    def _add_reference(self, problem: Problem, block: Block, places: Tensor):
        levels, out = problem.levels, self.reference[block.queries]
        places *= levels.sizes
        self._sum(places, levels.num_points, out[..., :2])
        if out.shape[-1] == 4:
            places.mul_(block.points.movedim(-1, 0)).div_(2 * levels.num_points)
            self._sum(places, levels.num_points, out[..., 2:])

    @staticmethod
    def _sum(samples: Tensor, num_points: int, out: Tensor):
        """Add up (2, R, M, S) over heads and points, and over levels that share one."""
        samples = samples.sum(2).unflatten(-1, (-1, num_points)).sum(-1)
        if out.shape[1] == 1:
            samples = samples.sum(-1, keepdim=True)
        out.add_(samples.movedim(0, -1))
