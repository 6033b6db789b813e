"""Run exported files on images, without the packages that the models came from."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mmattn.errors import MissingPackageError, UserError

from ..images import check_interpolation
from ..results import Classification, Detections, Segmentation
from .choices import SUFFIXES
from .inputs import Prepared, prepare, stack
from .metadata import Metadata
from .reading import open_onnx, open_openvino, open_pt2
from .results import check_outputs, detections, segmentation

Result = Detections | Segmentation | Classification | list[np.ndarray]


def load(
    file: str | Path,
    *,
    threads: int | None = None,
    providers: Sequence[str] | None = None,
    trust_checkpoint: bool = False,
) -> 'Runner':
    """Return a runner of a file that `export_model` or `mmattn export` wrote.

    An .onnx file requires numpy, Pillow, OpenCV and onnxruntime, an .xml file openvino
    in its place. A .pt2 file requires PyTorch.

    Args:
        file: an .onnx file, a .pt2 file, or an .xml file for OpenVINO.
        threads: threads of ONNX Runtime or OpenVINO, which choose by themselves by
            default. PyTorch's are set by `torch.set_num_threads`.
        providers: execution providers of ONNX Runtime; the CPU by default.
        trust_checkpoint: load a .pt2 file, and let PyTorch run the code that it may
            contain. An .onnx file contains none.

    Raises:
        ValueError: the file has another suffix, is damaged, was not written by mmattn,
            or is a .pt2 file that is not trusted.
        ImportError: onnxruntime, openvino or torch is not installed.

    Example:
        >>> import mmattn.export
        >>> runner = mmattn.export.load('model.onnx')  # doctest: +SKIP
        >>> runner('image.jpg').above(0.5).boxes  # doctest: +SKIP
    """
    file = Path(file)
    if file.suffix not in SUFFIXES.values():
        suffixes = ', '.join(SUFFIXES.values())
        raise UserError(f'the file must end with one of {suffixes}, got {file}')
    if not file.is_file():
        raise FileNotFoundError(f'{file} does not exist')
    if threads is not None and threads < 1:
        raise UserError(f'`threads` must be positive, got {threads}')
    given = providers is not None or (threads is not None and file.suffix == '.pt2')
    if given and file.suffix != '.onnx':
        raise UserError(
            '`threads` and `providers` are for .onnx files, `threads` also for .xml '
            f'files, got {file}'
        )
    try:
        if file.suffix == '.onnx':
            return Runner(*open_onnx(file, threads, providers))
        if file.suffix == '.xml':
            return Runner(*open_openvino(file, threads))
        return Runner(*open_pt2(file, trust_checkpoint))
    except MissingPackageError:
        raise
    except UserError as error:
        raise UserError(f'{file}: {error}') from error


class Runner:
    """Prepare images, run a model on them, and return what it found in them.

    Images are resized, padded and normalized as the test pipeline of the config does.
    A graph of a fixed size gets no larger images: those that the pipeline makes larger
    are shrunk to fit. With 800 x 1333, a portrait of 640 x 480 becomes 800 x 600, where
    the pipeline makes 1067 x 800 of it. A dynamic size, or 1333 x 1333, keeps the sizes
    of the pipeline.

    Args:
        run: maps the arrays of the graph's inputs to its output arrays.
        metadata: the description in the file.
    """

    def __init__(self, run: Callable[..., list[np.ndarray]], metadata: Metadata):
        if metadata.resize is not None:
            kinds = metadata.resize['interpolation'], metadata.resize['backend']
            check_interpolation(*kinds)
        self.run = run
        self.metadata = metadata

    def __call__(self, images) -> Result | list[Result]:
        """Return the result of an image, or of each image of a list.

        Args:
            images: an image or a list of images. An image is a path, a PIL image, or a
                uint8 array of shape (H, W, 3) in RGB. Files and PIL images are turned
                as their EXIF orientation says.

        Returns:
            `Detections`, `Segmentation`, `Classification`, or for a backbone the list
            of its feature maps, each of shape (C, H, W).

        Raises:
            ValueError: an image cannot be read.
        """
        if isinstance(images, (str, Path, Image.Image, np.ndarray)):
            return self([images])[0]
        if not isinstance(images, (list, tuple)):
            raise UserError(
                f'`images` must be an image or a list, got {type(images).__name__}'
            )
        results = []
        for start in range(0, len(images), self.batch):
            chunk = images[start : start + self.batch]
            prepared = [prepare(x, self.metadata) for x in chunk]
            for image, result in zip(chunk, self.predict(prepared), strict=True):
                if isinstance(image, (str, Path)) and not isinstance(result, list):
                    result.source = str(image)
                results.append(result)
        return results

    @property
    def batch(self) -> int:
        """Return how many images the graph takes at a time.

        A graph of dynamic size takes one: each image has its own size.
        """
        metadata = self.metadata
        takes_any = metadata.dynamic is not None and not metadata.per_image
        return 1 if takes_any else metadata.batch

    def predict(self, images: list[Prepared]) -> list[Result]:
        """Return the results of at most a batch of prepared images."""
        # The last batch may have fewer images than a fixed graph.
        filled = images + [images[-1]] * (self.batch - len(images))
        inputs = [stack(filled, self.metadata)]
        if self.metadata.per_image:
            inputs.append(np.array([each.size for each in filled], np.int64))
        try:
            outputs = self.run(*inputs)
        except Exception as error:  # the runtimes' errors have no common base
            raise UserError(
                f'the graph fails with images of shape {inputs[0].shape}: {error}'
            ) from error
        check_outputs(outputs, inputs[0].shape, self.metadata)
        rows = [[out[i] for out in outputs] for i in range(len(images))]
        return [self._result(*pair) for pair in zip(rows, images, strict=True)]

    def _result(self, outputs: list[np.ndarray], image: Prepared) -> Result:
        metadata = self.metadata
        if metadata.task == 'detection':
            return detections(outputs, image, metadata)
        if metadata.task == 'segmentation':
            return segmentation(outputs, image, metadata)
        if metadata.task == 'classification':
            return Classification(outputs[0], metadata.classes, size=image.original)
        return outputs
