"""Names of whole classifiers, of the papers' authors, timm and mmpretrain."""

import re
from collections.abc import Mapping

from torch import Tensor

BACKBONE = 'backbone.'
# The linear layer of mmpretrain, of the authors of DAT, of Hugging Face, and of others.
LINEAR = re.compile(r'(head\.fc|cls_head|classifier|head)\.(weight|bias)')
OTHER_PARTS = 'head_dist.', 'fc_norm.'


def to_classifier(
    weights: Mapping[str, Tensor], linear: str = 'head.'
) -> dict[str, Tensor]:
    """Give the weights of a backbone with a linear layer the names of a classifier.

    The backbone itself renames what is below `backbone.` when it loads.

    Args:
        weights: the weights. Names of a backbone may have the prefix `backbone.` or
            none.
        linear: prefix of the classifier's linear layer.
    """
    whole = any(name.startswith(BACKBONE) for name in weights)
    renamed = {}
    for name, value in weights.items():
        if found := LINEAR.fullmatch(name):
            name = linear + found[2]
        elif not whole and not name.startswith(OTHER_PARTS):
            name = BACKBONE + name
        renamed[name] = value
    return renamed
