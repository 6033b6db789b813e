"""Run an exported file on images."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mmattn.errors import UserError

from ..export.inputs import target_size
from ..export.runner import Runner, load

CUDA = ('CUDAExecutionProvider', 'CPUExecutionProvider')


class FileModel:
    """An .onnx, .pt2 or .xml file; see `ConfigModel`.

    Args:
        file: path of the file.
        device: 'cpu' by default; an .onnx file supports 'cuda' with onnxruntime-gpu.
        trust_checkpoint: see `mmattn.export.load`.

    Raises:
        ValueError: the file cannot be read, is only a backbone, or does not support
            the device.
    """

    def __init__(
        self, file: str, device: str | None = None, trust_checkpoint: bool = False
    ):
        kind = (device or 'cpu').partition(':')[0]
        kinds = ('cpu', 'cuda') if file.endswith('.onnx') else ('cpu',)
        if kind not in kinds:
            raise UserError(f'{file} does not support the device {device!r}')
        if kind == 'cuda' and CUDA[0] not in _providers():
            raise UserError(
                f'{file} cannot run on {device!r}: this ONNX Runtime has '
                f'{", ".join(_providers())}. Install onnxruntime-gpu, leave out '
                "`device`, or pass 'cpu'"
            )
        providers = CUDA if kind == 'cuda' else None
        runner = load(file, providers=providers, trust_checkpoint=trust_checkpoint)
        metadata = runner.metadata
        self.task = metadata.task
        if self.task == 'features':
            raise UserError(
                f'{file} is a backbone, which predicts nothing: export the whole '
                'model, or read its maps by mmattn.export.load'
            )
        self.classes, self.palette = metadata.classes, metadata.palette
        self.device = device or 'cpu'
        self.channels = metadata.raw
        self._name = file
        self._runners = {None: runner}

    def __call__(
        self, images: Sequence[np.ndarray], scale: float | None = None
    ) -> list:
        """Return the result of each image; see `ConfigModel`."""
        return self._runner(scale)(list(images))

    def prepared_size(
        self, image: np.ndarray, scale: float | None = None
    ) -> tuple[int, int]:
        """Return the height and width that the model sees, without padding."""
        metadata = self._runner(scale).metadata
        return target_size(image.shape[:2], metadata)[0]

    def _runner(self, scale: float | None) -> Runner:
        if scale not in self._runners:
            first = self._runners[None]
            metadata = first.metadata
            if metadata.dynamic != 'size':
                raise UserError(
                    f'{self._name} takes only images of {metadata.shape}, so that '
                    '`scale` cannot change: export it with --dynamic size, or pass '
                    f'`tile={tuple(metadata.shape)}`'
                )
            resize = dict(interpolation='bilinear', backend='cv2', factor=scale)
            self._runners[scale] = Runner(first.run, replace(metadata, resize=resize))
        return self._runners[scale]


def _providers() -> list[str]:
    try:
        import onnxruntime
    except ImportError:  # `load` says what to install
        return list(CUDA)
    return onnxruntime.get_available_providers()
