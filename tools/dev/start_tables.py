"""Tables of starts from related networks: what they take, and what they gain."""

import csv
from pathlib import Path
from statistics import mean

import timm
import torch

import mmattn.models
from mmattn.engine.checkpoints.weights import load_weights
from mmattn.models.backbones import __all__ as BACKBONES
from tools.dev.readme_tables import markdown
from tools.evidence.verdicts import decide, paired_test


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


def gain_table(path: Path) -> str:
    """Return accuracies from related weights and from random ones, with intervals."""
    head = ['donor, network', 'share', 'seeds', 'random', 'donor', 'difference']
    rows = [[*head, '95 % interval', 'verdict']]
    with path.open(newline='') as file:
        runs = list(csv.DictReader(file))
    for pair in dict.fromkeys(run['pair'] for run in runs):
        found, share = {'random': {}, 'donor': {}}, 0.0
        for run in runs:
            if run['pair'] == pair:
                found[run['start']][run['seed']] = float(run['accuracy'])
                share = max(share, float(run['share']))
        seeds = found['random'].keys() & found['donor'].keys()
        if not seeds:
            continue
        random, donor = ([runs[seed] for seed in seeds] for runs in found.values())
        test = paired_test([a - b for a, b in zip(donor, random, strict=True)], 0.0)
        interval = ''
        if test.half < float('inf'):
            low, high = test.mean - test.half, test.mean + test.half
            interval = f'{low:+.1f} to {high:+.1f}'
        row = [pair, f'{share:.1%}', str(test.seeds), f'{mean(random):.1f}']
        row += [f'{mean(donor):.1f}', f'{test.mean:+.1f}', interval]
        row += decide([test])
        rows.append(row)
    return markdown(rows)
