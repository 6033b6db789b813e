"""Initial weights."""

from torch import nn


def init_linear_and_conv(module: nn.Module, std: float = 0.02):
    """Truncated normal weights and zero biases, for `nn.Module.apply`."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
