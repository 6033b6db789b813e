"""Feature maps of a backbone."""

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class Backbone(nn.Module):
    """Return the maps of a backbone as a flat tuple.

    Args:
        backbone: any backbone of ours or of the mm packages.
    """

    task = 'features'
    input_names = ('image',)
    output_names = ()  # one name for each map, as many as there are

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(tree_leaves(self.backbone(image)))
