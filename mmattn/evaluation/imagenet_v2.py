"""ImageNet-V2, a second test set for classifiers of ImageNet-1k."""

from pathlib import Path

from mmpretrain.datasets import ImageNet

from mmattn.errors import UserError, check_choice
from mmattn.registry import DATASETS

SPLITS = 'matched-frequency', 'threshold0.7', 'top-images'
NUM_CLASSES = 1000


@DATASETS.register_module()
class ImageNetV2(ImageNet):
    """10,000 new images of the 1,000 classes of ImageNet-1k.

    Recht et al., "Do ImageNet Classifiers Generalize to ImageNet?",
    https://arxiv.org/abs/1902.10811. The published archives have a folder for each
    class, named by its index without leading zeros, so folders in alphabetical order
    would give wrong labels:

        imagenetv2-matched-frequency-format-val/
        ├── 0/      images of class 0
        ├── 1/
        └── 999/

    Args:
        data_root: folder with the unpacked archives.
        split: 'matched-frequency', which papers usually report, 'threshold0.7' or
            'top-images'.
        data_prefix: folder of the classes below `data_root`; defaults to the archive's,
            `imagenetv2-<split>-format-val`.
        **kwargs: as for mmpretrain's `ImageNet`.

    Raises:
        ValueError: unknown split, or the folders of the classes are not 0 to 999 with
            at least one image each.
    """

    def __init__(
        self,
        data_root: str = '',
        split: str = 'matched-frequency',
        data_prefix: str = '',
        **kwargs,
    ):
        check_choice('ImageNetV2: split', split, SPLITS)
        prefix = data_prefix or f'imagenetv2-{split}-format-val'
        super().__init__(data_root=data_root, data_prefix=prefix, **kwargs)

    def _find_samples(self) -> list[tuple[str, int]]:
        """Return paths below the folder, in the order of the classes, and labels."""
        root = Path(self.img_prefix)
        if not root.is_dir():
            raise UserError(
                f'ImageNetV2: no folder {root}; docs/datasets.md says how to get it'
            )
        samples, empty = [], []
        for label in range(NUM_CLASSES):
            files = sorted(
                path
                for path in root.glob(f'{label}/*')
                if path.is_file() and self.is_valid_file(path.name)
            )
            samples += [(str(path.relative_to(root)), label) for path in files]
            if not files:
                empty.append(label)
        folders = {path.name for path in root.iterdir() if path.is_dir()}
        others = sorted(folders - {str(label) for label in range(NUM_CLASSES)})
        if others:
            raise UserError(
                f'ImageNetV2: folders of {root} must be class indices 0 to '
                f'{NUM_CLASSES - 1}, got {others[:3]}'
            )
        if empty:
            raise UserError(
                f'ImageNetV2: {root} has no image of {len(empty)} of {NUM_CLASSES} '
                f'classes, such as {empty[:3]}; unpack the archive again'
            )
        return samples
