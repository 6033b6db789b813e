"""Landmark attention keeps its accuracy above the resolution of its training."""

from tools.evidence.claim import Claim, Comparison, Variant, load_claim


def tested(variant: Variant) -> Variant:
    """Test on the first 2,500 test images, at 28 and at 42 pixels."""
    larger = [dict(type='Resize', scale=42), dict(type='PackInputs')]
    tests = {
        '28': {'test_dataloader.dataset.indices': 2500},
        '42': {
            'test_dataloader.dataset.indices': 2500,
            'test_dataloader.dataset.pipeline': larger,
        },
    }
    return Variant(variant.config, variant.options, tests)


variants = load_claim('interaction').variants


def at(name: str, side: int) -> str:
    return f'{name}@{side}:accuracy/top1'


claim = Claim(
    statement='A ViT with interactive landmark attention that is tested at 1.5 times '
    'the size of its training images keeps its accuracy, and loses less than one with '
    'dense attention.',
    source='iMHSA, https://arxiv.org/abs/2402.17507, Table 4, which fine-tunes at the '
    'larger size; here nothing is fine-tuned',
    image_shape=(1, 42, 42),
    variants={name: tested(variants[name]) for name in ('mhsa_8', 'both_8')},
    alike=(('mhsa_8', 'both_8'),),
    comparisons=(
        Comparison(
            'landmark attention at 42 pixels against 28 (a loss of 1 allowed)',
            at('both_8', 42),
            at('both_8', 28),
            allowed=1.0,
        ),
        Comparison(
            'the same change, against that of dense attention',
            (at('both_8', 42), at('mhsa_8', 28)),
            (at('both_8', 28), at('mhsa_8', 42)),
            smallest=0.5,
        ),
    ),
    notes='The trained networks of [interaction](interaction.md). Images are enlarged '
    '(bilinear), so they hold no more detail, and padded from 42 to 44 pixels, a whole '
    'number of patches. MFLOPs are those at 42 pixels. The result does not contradict '
    'the paper, whose networks are trained for 30 more epochs at the larger size. It '
    'says that these networks, which saw one size and few images, need that training. '
    '[The analysis](../resolution.md) says where the loss comes from.',
)
