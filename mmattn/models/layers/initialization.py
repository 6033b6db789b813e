"""Initial weights, by rule or by config."""

from torch import nn

from .ms_deform_attention import MSDeformAttention


class Initializable(nn.Module):
    """Module that mmengine initializes by a config, `init_cfg`."""

    init_cfg: dict | list[dict] | None = None

    def init_weights(self):
        """Load what `init_cfg` names; without it the constructor's weights stay."""
        if self.init_cfg:
            from mmengine.model import initialize

            initialize(self, self.init_cfg)


def init_linear_and_conv(module: nn.Module, std: float = 0.02):
    """Draw truncated normal weights and set biases to zero, for `nn.Module.apply`."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def init_stem_bias(stem: nn.Module):
    """Draw the bias of a stem's convolution `proj`.

    With a bias of 0, padded pixels would reach every norm as zeros. Each norm would
    multiply their gradient by the inverse root of its epsilon, 300 to 1,000.
    """
    nn.init.trunc_normal_(stem.proj.bias, std=0.02)


def init_transformer(module: nn.Module):
    """Draw Xavier's weights for all matrices, as DETR and Deformable DETR do.

    `MSDeformAttention` gets its own initial weights. Biases stay as they are.
    """
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    for child in module.modules():
        if isinstance(child, MSDeformAttention):
            child.reset_parameters()
