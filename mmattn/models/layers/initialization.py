"""Initial weights."""

from torch import nn

from .ms_deform_attention import MSDeformAttention


def init_linear_and_conv(module: nn.Module, std: float = 0.02):
    """Truncated normal weights and zero biases, for `nn.Module.apply`."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def init_transformer(module: nn.Module):
    """Xavier's weights for all matrices but those of modules with a start of their own.

    As DETR and Deformable DETR; biases stay as they are.
    """
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    for child in module.modules():
        if isinstance(child, MSDeformAttention):
            child.reset_parameters()
