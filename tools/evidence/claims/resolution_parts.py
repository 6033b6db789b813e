"""Changes of larger images, one at a time, keep the accuracy."""

from tools.evidence.claim import Claim, Comparison, load_claim

NETWORKS = {'mhsa_8': 'dense attention', 'both_8': 'landmark attention'}
PARTS = {
    'larger': 'images enlarged to 44 pixels, without padding',
    'more patches': 'more patches, of the original images',
    'enlarged patches': 'as many patches, of the enlarged images',
    'surrounded': 'original images with a black surrounding',
}
# A loss of one point counts as none, as in the claim on resolution.
ALLOWED = 1.0


def kept(name: str, part: str, text: str, other: str = 'original') -> Comparison:
    return Comparison(
        f'{NETWORKS[name]}: {text}',
        f'{name}@{part}',
        f'{name}@{other}',
        allowed=ALLOWED,
    )


variants = load_claim('interaction').variants

claim = Claim(
    statement='The accuracy stays when one property of a larger test image is changed '
    'at a time, and when the network is trained for another tenth at the larger size.',
    source='none; it takes [resolution](resolution.md) apart. Fine-tuning is from '
    'iMHSA, https://arxiv.org/abs/2402.17507, Table 4',
    image_shape=(1, 44, 44),
    variants={name: variants[name] for name in NETWORKS},
    seeds=(3, 4, 5),
    measurements=('larger_images',),
    comparisons=(
        *(kept(name, part, text) for name in NETWORKS for part, text in PARTS.items()),
        *(
            kept(
                name,
                'tuned, larger',
                'trained on at 44 pixels, against as long at 28',
                'tuned, original',
            )
            for name in NETWORKS
        ),
        Comparison(
            'landmark attention: no padding against 42 pixels padded to 44',
            'both_8@larger',
            'both_8@padded',
            smallest=1.0,
        ),
        Comparison(
            'landmark attention: 6 x 6 landmarks against 4 x 4, at 44 pixels',
            'both_8@more landmarks',
            'both_8@larger',
            smallest=1.0,
        ),
    ),
    notes='The networks of [interaction](interaction.md) with other seeds, on the '
    'first 2,500 test images. `tools/evidence/larger_images.py` defines the changes. '
    '[The analysis](../resolution.md) reads the result.',
)
