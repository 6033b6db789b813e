"""Pipelines that check each sample and name its files in errors."""

from collections.abc import Iterator

import numpy as np
from mmengine.dataset import Compose

from mmattn.errors import UserError

from .image_files import check_image_file
from .loading import with_our_reader

NO_CLASS = 255
"""The id that mmseg's maps and losses always ignore."""
ONE = np.uint8(1)


class DataError(UserError):
    """Error in a data set that names the file or the key of the config."""


def leaves(dataset, key: str = 'dataset') -> Iterator[tuple[str, object]]:
    """Yield the data sets inside mm's wrappers, each with its key in the config."""
    if hasattr(dataset, 'datasets'):
        for index, part in enumerate(dataset.datasets):
            yield from leaves(part, f'{key}.datasets.{index}')
    elif hasattr(dataset, 'dataset'):
        yield from leaves(dataset.dataset, f'{key}.dataset')
    else:
        yield key, dataset


IMAGE_LOADERS = 'LoadImage', 'LoadImageFromFile', 'LoadChannels'


def loader(dataset, name: str, **attributes):
    """Return the transform of a data set that loads local files, or None.

    It has a class of this name, and these attributes.
    """
    pipeline = getattr(dataset, 'pipeline', None)
    for transform in getattr(pipeline, 'transforms', ()):
        if type(transform).__name__ != name:
            continue
        backend = (getattr(transform, 'backend_args', None) or {}).get('backend')
        client = getattr(transform, 'file_client_args', None)
        if (
            backend in (None, 'local')
            and not client
            and not getattr(transform, 'ignore_empty', False)
            and all(getattr(transform, k, None) == v for k, v in attributes.items())
        ):
            return transform
    return None


class CheckedPipeline(Compose):
    """Run a data set's pipeline, check the files it loads, and name them in errors.

    Images are read as prediction reads them, and label maps by Pillow. Files must be
    whole. A label map must be as large as its image, and its ids must be classes or
    ignored.

    Args:
        dataset: the data set whose pipeline is replaced.
        ignored: ids that the loss ignores.
    """

    def __init__(self, dataset, ignored: frozenset[int]):
        pipeline = dataset.pipeline
        pipeline.transforms = list(map(with_our_reader, pipeline.transforms))
        self.transforms = pipeline.transforms
        self.owner = type(dataset).__name__
        self.loads_labels = loader(dataset, 'LoadAnnotations', with_seg=True)
        loaders = [loader(dataset, name) for name in IMAGE_LOADERS]
        self.loads_image = next((found for found in loaders if found), None)
        self.files = [] if self.loads_image is None else ['img_path']
        if self.loads_labels is not None:
            # OpenCV turns palettes and images of 1 bit into colors.
            self.loads_labels.imdecode_backend = 'pillow'
            self.files.append('seg_map_path')
        self.num_classes = None
        if hasattr(dataset, 'reduce_zero_label'):  # mmseg: ids are classes
            classes = dataset.metainfo.get('classes')
            # A single class may be the foreground of a sigmoid, which has two ids.
            self.num_classes = max(2, len(classes)) if classes else None
        ignore_index = getattr(dataset, 'ignore_index', NO_CLASS)
        self.ignored = ignored | {ignore_index, NO_CLASS}

    def __call__(self, data: dict) -> dict | None:
        names = [
            value
            for name, value in data.items()
            if name.endswith('_path') and isinstance(value, str)
        ]
        index = data.get('sample_idx')
        try:
            return self._run(data)
        except Exception as error:  # a transform of a user may raise anything
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f'{type(error).__name__}: {reason}'
            where = f'sample {index} of {self.owner}'
            if names and not any(name in reason for name in names):
                where += f', {" and ".join(names)}'
            raise DataError(f'{where}: {reason}') from error

    def _run(self, data: dict) -> dict | None:
        for name in self.files:
            path = data.get(name)
            if isinstance(path, str) and '://' not in path:
                check_image_file(path)
        for transform in self.transforms:
            data = transform(data)
            if data is None:
                return None
            if transform is self.loads_image:
                self._check_size(data)
            if transform is self.loads_labels and 'gt_seg_map' in data:
                self._check_labels(data)
        return data

    def _check_size(self, data: dict) -> None:
        """Compare an image with the size of its annotations, where they have one."""
        declared, shape = (data.get('height'), data.get('width')), data.get('ori_shape')
        if None in declared or shape is None or declared == tuple(shape[:2]):
            return
        raise UserError(
            f'{data["img_path"]} has {shape[0]} x {shape[1]} pixels (height x width), '
            f'turned by its EXIF orientation if it has one, but its annotations say '
            f'{declared[0]} x {declared[1]}: annotate the image as it is shown'
        )

    def _check_labels(self, data: dict) -> None:
        labels, shape = data['gt_seg_map'], data.get('ori_shape')
        if shape is not None and labels.shape != tuple(shape[:2]):
            raise UserError(
                f'{data["seg_map_path"]} has the shape {labels.shape}, but its image '
                f'has {tuple(shape[:2])}'
            )
        if self.num_classes is None:
            return
        # Adding 1 turns NO_CLASS into 0. This takes a tenth of the time of `unique`.
        if labels.dtype == np.uint8 and (labels + ONE).max() <= self.num_classes:
            return
        wrong = [
            label
            for label in np.unique(labels).tolist()
            if not 0 <= label < self.num_classes and label not in self.ignored
        ]
        if wrong:
            raise UserError(
                f'{data["seg_map_path"]} has the label {wrong[0]}, but there are '
                f'{self.num_classes} classes, 0 to {self.num_classes - 1}, with '
                f'reduce_zero_label={data.get("reduce_zero_label")}; ignored: '
                f'{sorted(self.ignored)}'
            )


def check_pipelines(dataset, ignored: frozenset[int] = frozenset()):
    """Replace the pipelines of a data set and of those inside it by checked ones.

    The loss ignores the ids `ignored` in label maps.
    """
    for _, leaf in leaves(dataset):
        if type(getattr(leaf, 'pipeline', None)) is Compose:
            leaf.pipeline = CheckedPipeline(leaf, ignored)
