"""Measure a trained network beyond the metrics of its evaluator.

    python -m tools.evidence.measurements CONFIG head_diversity --checkpoint FILE \
        --out metrics.json

`run.py` calls it for claims with `measurements`. Images are evenly spaced in the
validation data.
"""

import json
from collections.abc import Sequence
from statistics import mean

import torch

from mmattn.analysis.image_in_model import LoadedModel, load_model, make_model_parser
from mmattn.engine.data import innermost_dataset
from mmattn.terminal import run_main
from tools.analysis.mask_search import load_images
from tools.evidence.larger_images import (
    BATCH,
    TEST_IMAGES,
    TUNING_STEPS,
    accuracies,
    load,
)

NUM_IMAGES = 64


def head_diversity(loaded: LoadedModel) -> dict[str, float]:
    """Return variances and similarity of the heads, averaged over the layers."""
    from mmattn.analysis import head_diversity

    images = load_images(loaded.cfg, loaded.model, 'val', NUM_IMAGES)
    with torch.no_grad():
        layers = head_diversity(loaded.backbone, images)
    return {
        name: mean(getattr(layer, name) for layer in layers)
        for name in ('head_variance', 'map_variance', 'similarity')
    }


def larger_images(loaded: LoadedModel) -> dict[str, float]:
    """Return accuracies in percent, with one property of larger images at a time."""
    test = innermost_dataset(loaded.cfg.val_dataloader)
    train = innermost_dataset(loaded.cfg.train_dataloader)
    train = {**train, 'pipeline': test['pipeline']}
    scope = loaded.cfg.default_scope
    return accuracies(
        loaded.model,
        load(loaded.model, test, scope, TEST_IMAGES),
        load(loaded.model, train, scope, BATCH * TUNING_STEPS),
    )


MEASUREMENTS = {'head_diversity': head_diversity, 'larger_images': larger_images}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_model_parser(__doc__, 'metrics.json')
    parser.add_argument('measurement', choices=MEASUREMENTS)
    args = parser.parse_args(argv)
    loaded = load_model(args)
    found = MEASUREMENTS[args.measurement](loaded)
    args.out.write_text(json.dumps(found) + '\n')


if __name__ == '__main__':
    run_main(main)
