"""Conversion of weights for COCO's category ids to weights for its classes.

The Deformable DETRs that the authors and Hugging Face published have 91 outputs, one
for each category id from 0 to 90. COCO uses 80 of these (https://cocodataset.org,
`categories` of its annotation files). mmdet's `CocoDataset`, and so the configs here,
number the classes in the order of their ids.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from mmattn.errors import UserError
from mmattn.weights.layouts.deformable_detr import TWO_STAGE, convert_state_dict

OUTPUTS = 91
UNUSED_IDS = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
CATEGORY_IDS = tuple(i for i in range(OUTPUTS) if i not in UNUSED_IDS)
CLASS_BRANCH = re.compile(r'bbox_head\.cls_branches\.(\d+)\.(?:weight|bias)')


def with_coco_classes(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights for COCO's category ids to its 80 classes, with our names.

    Class k of every branch takes its output `CATEGORY_IDS[k]`. The other outputs, which
    no object of COCO has, are dropped.

    With two stages the last branch is the first stage's. It is trained with label 0 for
    every object, and its output 0 decides which pixels become queries. So output 0 is
    kept in place of id 1's. Outputs 1 to 79 belong to the other category ids,
    as elsewhere; they were trained only as background, and no prediction reads them.

    Args:
        state_dict: weights of any layout that `convert_state_dict` knows.

    Raises:
        ValueError: see `convert_state_dict`; or a branch does not have 91 outputs, or
            there are no branches.
    """
    weights = convert_state_dict(state_dict)
    branches = {
        name: int(found[1])
        for name in weights
        if (found := CLASS_BRANCH.fullmatch(name))
    }
    outputs = sorted({len(weights[name]) for name in branches})
    if outputs != [OUTPUTS]:
        raise UserError(
            f"the branches of weights for COCO's category ids must have {OUTPUTS} "
            f'outputs, got {outputs}'
        )
    kept = torch.tensor(CATEGORY_IDS)
    first_stage = max(branches.values()) if TWO_STAGE in weights else None
    for name, branch in branches.items():
        ids = kept.clone()
        if branch == first_stage:
            ids[0] = 0
        weights[name] = weights[name][ids.to(weights[name].device)]
    return weights
