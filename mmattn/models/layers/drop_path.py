"""Stochastic depth.

timm has this layer, too, but importing any part of timm imports all of its models,
which takes longer than all of ours.
"""

from torch import Tensor, nn

from mmattn.errors import UserError


class DropPath(nn.Module):
    """Drop a branch in training, image by image; scale up the ones that are kept.

    From Huang et al., "Deep Networks with Stochastic Depth",
    https://arxiv.org/abs/1603.09382.

    Args:
        drop_prob: probability that the branch of an image is dropped.
    """

    def __init__(self, drop_prob: float = 0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0 or not self.training:
            return x
        keep_prob = 1 - self.drop_prob
        kept = x.new_empty(x.shape[:1] + (1,) * (x.dim() - 1)).bernoulli_(keep_prob)
        if keep_prob > 0:
            kept.div_(keep_prob)
        return x * kept

    def extra_repr(self) -> str:
        return f'drop_prob={self.drop_prob:.3f}'


def drop_path_rates(last: float, depth: int, schedule: str = 'linear') -> list[float]:
    """Return the stochastic depth of each of `depth` blocks.

    It grows linearly from 0 to `last`, or is `last` for all if `schedule` is
    'constant'.
    """
    if schedule not in ('linear', 'constant'):
        raise UserError(
            f"drop_path_schedule must be 'linear' or 'constant', got {schedule!r}"
        )
    if schedule == 'constant':
        return [last] * depth
    return [last * i / max(1, depth - 1) for i in range(depth)]
