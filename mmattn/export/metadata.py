"""Describe an exported file, so that it runs without the config that it came from."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from math import prod
from reprlib import repr as short
from typing import Any

from mmattn.errors import UserError

from .metadata_rules import RULES

KEY = 'mmattn'  # of the description in an ONNX file
PT2_FILE = 'mmattn.json'  # the description inside a pt2 file
RANKS = dict(classification=2, segmentation=4)  # of scores and logits
MAX_TEXT = 2**24  # characters
MAX_PIXELS = 2**28  # 3 GiB in float32


def check_pixels(count: int, what: str):
    """Raise a ValueError for more pixels than memory may have room for."""
    if count > MAX_PIXELS:
        raise UserError(
            f'{what} would have {count} pixels; at most {MAX_PIXELS} are supported'
        )


@dataclass
class Metadata:
    """Describe the model in a file, and how to prepare images for it.

    Attributes:
        task: 'features', 'classification', 'segmentation' or 'detection'.
        inputs: names of the inputs.
        outputs: names of the outputs.
        shape: height and width of the images that the graph was made for.
        batch: images in a batch.
        dynamic: None, 'batch', or 'size' (batch, height and width; detectors keep
            their batch).
        least: None, or with a dynamic size the least height and width that the graph
            is valid for.
        mean: mean of each channel, of values from 0 to 255.
        std: standard deviation of each channel.
        channel_order: 'rgb' or 'bgr'; the order of the input, `mean` and `std`. 'file'
            is for images of any number of channels, as their files have them.
        normalized: whether the graph subtracts `mean` and divides by `std`.
        input_dtype: 'float32' or 'uint8'.
        resize: None if images keep their size. Otherwise `interpolation` and `backend`
            ('cv2', 'pillow', or 'torch', which keeps float pixels and floors the size)
            with one of: `scale` [width, height] and `keep_ratio` as in mmcv's Resize;
            `factor`, by which both sides are multiplied; `short_side`, the new length
            of the shorter side.
        crop: None, or height and width of the crop from the center.
        pad: `divisor` of height and width, and `value` after normalization. Padding is
            below and to the right.
        classes: names of the classes, or None.
        palette: colors of the classes for segmentation, or None.
        align_corners: how a segmentor's logits are resized.
        mask_threshold: probability from which a pixel belongs to a mask, or above which
            it belongs to the only class of a segmentor.
        version: version of mmattn.
        config: file name of the config.
        checkpoint_sha256: hash of the checkpoint, or None for random weights.
    """

    task: str
    inputs: list[str]
    outputs: list[str]
    shape: list[int]
    batch: int = 1
    dynamic: str | None = None
    least: list[int] | None = None
    mean: list[float] = field(default_factory=lambda: [0.0] * 3)
    std: list[float] = field(default_factory=lambda: [1.0] * 3)
    channel_order: str = 'rgb'
    normalized: bool = False
    input_dtype: str = 'float32'
    resize: dict[str, Any] | None = None
    crop: list[int] | None = None
    pad: dict[str, Any] = field(default_factory=lambda: dict(divisor=1, value=0))
    classes: list[str] | None = None
    palette: list[list[int]] | None = None
    align_corners: bool = False
    mask_threshold: float | None = None
    version: str = ''
    config: str | None = None
    checkpoint_sha256: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | None) -> 'Metadata':
        """Read a file's description, ignoring keys of newer versions.

        Raises:
            ValueError: there is none, the text is no description, or it lacks a key.
        """
        if text is None:
            raise UserError(
                'it has no metadata of mmattn; `mmattn export` writes files that do'
            )
        if len(text) > MAX_TEXT:
            raise UserError(
                f'the metadata must have at most {MAX_TEXT} characters, got {len(text)}'
            )
        try:
            values = json.loads(text)
        except (RecursionError, ValueError):
            values = None
        if not isinstance(values, dict):
            raise UserError(
                f'the metadata must be an object written by mmattn, got {short(text)}'
            )
        names = [item.name for item in fields(cls)]
        # A default in place of a lost key could change the results.
        if missing := [name for name in names if name not in values]:
            raise UserError(
                f'the metadata must have the keys {missing}; export the model again'
            )
        metadata = cls(**{name: values[name] for name in names})
        metadata.check()
        return metadata

    def check(self):
        """Raise a ValueError if an exported model cannot have an attribute's value."""
        for name, (is_valid, accepted) in RULES.items():
            value = getattr(self, name)
            if not is_valid(value):
                raise UserError(
                    f'`{name}` of the metadata must be {accepted}, got {short(value)}'
                )
        for name in ('mean', 'std'):
            count = len(getattr(self, name))
            if count != (self.raw or 3) or count == 0:
                raise UserError(
                    f'`{name}` of the metadata must be {self.raw or 3} numbers, one '
                    f'for each channel, got {count}'
                )
        check_pixels(self.batch * prod(self.shape), 'a batch')

    @property
    def raw(self) -> int | None:
        """Return the channels of images that are read as they are, None for RGB."""
        return len(self.mean) if self.channel_order == 'file' else None

    @property
    def per_image(self) -> bool:
        """Return whether the graph takes the size of each image without padding."""
        return 'image_size' in self.inputs

    @property
    def channels(self) -> int:
        """Return the channels of the input."""
        return len(self.mean)

    def check_classes(self, shape: Sequence):
        """Raise a ValueError unless each channel of scores or logits has a class.

        Args:
            shape: shape of the first output, with symbols for dynamic sides. Label maps
                and detections have no such channels. One channel of logits may stand
                for two classes.
        """
        if self.classes is None or len(shape) != RANKS.get(self.task):
            return
        count = shape[1]
        is_binary = self.task == 'segmentation' and count == 1
        if isinstance(count, int) and count != len(self.classes) and not is_binary:
            raise UserError(
                f'`classes` of the metadata must have a name for each of the {count} '
                f'classes of the model, got {len(self.classes)} names'
            )
