"""Annotations on their way from a format to COCO."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import cos, pi, sin
from pathlib import Path, PureWindowsPath

from mmattn.errors import UserError

from ..coco_json import is_text, shown
from ..image_files import image_size, images_in

OBJECT = 'object'  # the class where annotations name none
ROUND = 32  # points of the polygon of an ellipse


@dataclass
class Content:
    """Annotations in the order and the form of COCO.

    Attributes:
        images: with `file_name`, relative to the folder of images, `height`, `width`.
        annotations: with `category_id`, and `bbox` or `segmentation`.
        categories: `id` and `name` of each class.
        places: names each annotation in errors; empty if their ids do.
    """

    images: list[dict] = field(default_factory=list)
    annotations: list[dict] = field(default_factory=list)
    categories: list[dict] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def add_image(self, name: str, size: tuple[int, int]):
        """Add an image by its path in the folder of images."""
        number, (height, width) = len(self.images) + 1, size
        self.images.append(dict(id=number, file_name=name, height=height, width=width))

    def add(self, place: str, **entry):
        """Add an object of the newest image."""
        self.places.append(place)
        self.annotations.append(dict(image_id=len(self.images), **entry))

    def name_categories(self, names: Iterable[str]):
        self.categories = [dict(id=name, name=name) for name in sorted(names)]


def checked_size(
    path: Path, declared: tuple, place: str, channels: int | None = None
) -> tuple[int, int]:
    """Return the height and width of an image as it is trained on.

    Args:
        path: file of the image.
        declared: height and width of the annotations, None for unknown.
        place: names the annotations in the error.
        channels: see `image_size`.

    Raises:
        ValueError: the annotations are of another size.
    """
    size = image_size(path, channels)
    if any(d is not None and d != s for d, s in zip(declared, size, strict=True)):
        raise UserError(
            f'{place} says that {path} has {" x ".join(map(shown, declared))} pixels '
            f'(height x width), but it has {size[0]} x {size[1]}, turned by its EXIF '
            'orientation if it has one: annotate the image as it is shown'
        )
    return size


def rectangle(box: list[float]) -> list[float]:
    x, y, w, h = box
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def ellipse(x: float, y: float, rx: float, ry: float, theta: float = 0) -> list[float]:
    """Return the polygon of an ellipse, turned by an angle in radians."""
    points = []
    for angle in (2 * pi * i / ROUND for i in range(ROUND)):
        along, across = rx * cos(angle), ry * sin(angle)
        points += [
            x + along * cos(theta) - across * sin(theta),
            y + along * sin(theta) + across * cos(theta),
        ]
    return points


class ImageNames(dict):
    """The images of a folder, with their paths in it, found by path or name alone."""

    def __init__(self, folder: Path):
        super().__init__(
            (path, path.relative_to(folder).as_posix()) for path in images_in(folder)
        )
        self.folder, self.named = folder, {}
        for path, inside in self.items():
            whole = Path(inside)
            stems = whole.stem, whole.with_suffix('').as_posix()
            for name in {inside, whole.name, *stems}:
                self.named.setdefault(name, []).append(path)

    def find(self, given, place: str) -> Path:
        """Return the image that annotations name, with or without suffix and folders.

        Raises:
            ValueError: no image has the name, or several have.
        """
        found = self.all_of(given)
        if len(found) != 1:
            raise UserError(
                f'{place} must name one image in {self.folder}, got {shown(given)}, '
                f'which is {len(found)}'
            )
        return found[0]

    def all_of(self, given) -> list[Path]:
        """Return the images that a name may mean."""
        path = PureWindowsPath(given if is_text(given) else '')  # knows / and \
        return self.named.get(path.as_posix()) or self.named.get(path.name, [])
