"""Normalization inside the graph."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalized(nn.Module):
    """Subtract the mean and divide by the deviation, then call a graph.

    Args:
        graph: takes normalized images first.
        mean, std: one value for each channel.
        pad_value: value of padding after normalization. It is set again outside of
            `image_size` if the graph takes that.
    """

    def __init__(
        self,
        graph: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        pad_value: float = 0.0,
    ):
        super().__init__()
        self.inner = graph  # GraphModule has its own `graph`
        self.task = graph.task
        self.input_names = graph.input_names
        self.output_names = graph.output_names
        self.pad_value = float(pad_value)
        for name, values in (('mean', mean), ('std', std)):
            value = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, value, persistent=False)

    def forward(
        self, image: Tensor, image_size: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        image = (image.to(self.mean) - self.mean) / self.std
        if image_size is None:
            return self.inner(image)
        H, W = image.shape[-2:]
        rows = torch.arange(H, device=image.device).view(1, 1, H, 1)
        columns = torch.arange(W, device=image.device).view(1, 1, 1, W)
        height, width = image_size.view(-1, 2, 1, 1, 1).unbind(1)  # (B, 1, 1, 1)
        inside = (rows < height) & (columns < width)
        image = torch.where(inside, image, self.pad_value)
        return self.inner(image, image_size)
