"""The table of what backbones take of related networks."""

import timm
import torch

import mmattn.models
from mmattn.models.backbones import __all__ as BACKBONES
from mmattn.weights.load import load_weights
from tools.dev.readme_tables import markdown


def start_table() -> str:
    """Return what each backbone takes of a related network's weights."""
    head = ['backbone', '`arch`', 'weights', 'tensors taken', 'of these resized']
    rows = [[*head, 'left in the file', 'new', 'share of parameters taken']]
    for name in BACKBONES:
        for arch, weights in getattr(mmattn.models, name).starts.items():
            with torch.device('meta'):
                model = getattr(mmattn.models, name)(arch)
                given = timm.create_model(weights.removeprefix('timm://')).state_dict()
            report = load_weights(model, given)
            parts = report.matched, report.resized, report.unexpected, report.missing
            row = [f'`{name}`', f"`'{arch}'`", f'`{weights}`', *map(len, parts)]
            rows.append([*row, f'{report.share():.1%}'])
    return markdown(rows)
