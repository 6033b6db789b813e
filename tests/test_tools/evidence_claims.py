"""A small claim and rows of runs, for the tests of tools/evidence."""

from tools.evidence.claim import Claim, Comparison, Variant
from tools.evidence.run_rows import COLUMNS, Run

VIT = 'configs/evidence/vit_n_fashion_mnist.py'
METRIC = 'accuracy/top1'


def make_claim(**settings) -> Claim:
    """Return a claim about two networks, with other settings."""
    two = Variant(VIT, {'model.backbone.arch.num_heads': 2})
    settings = (
        dict(
            statement='Many heads are better.',
            source='nobody',
            image_shape=(1, 28, 28),
            variants={'two': two, 'eight': Variant(VIT)},
            comparisons=(Comparison('eight heads against two', 'eight', 'two'),),
            alike=(('two', 'eight'),),
        )
        | settings
    )
    return Claim(**settings)


def make_run(variant='eight', seed=0, config_hash='abc', **metrics) -> Run:
    """Return a run; its metric is an accuracy of 80.5 by default."""
    facts = {name: kind(1) for name, kind in COLUMNS.items()}
    facts |= dict(variant=variant, seed=seed, config_hash=config_hash)
    return Run(facts, metrics or {METRIC: 80.5})
