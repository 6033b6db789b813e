"""Parameters that weight decay would harm."""

from torch import nn


def undecayed_names(module: nn.Module) -> set[str]:
    """Return the names of the parameters that their layers exempt from weight decay.

    These are special tokens, tables that are looked up, the mixing weights of heads,
    which start near the identity, and the logits of soft masks, which decay would pull
    to an alpha of a half. A layer lists them in `no_weight_decay()`, relative to it.
    """
    own = {name for name, _ in module.named_parameters()}
    exempt = {
        f'{prefix}.{name}'.lstrip('.')
        for prefix, layer in module.named_modules()
        if layer is not module and hasattr(layer, 'no_weight_decay')
        for name in layer.no_weight_decay()
    }
    return own & exempt
