"""The frame of detectors' graphs, and checks of the parts of a model."""

from torch import nn

from ..errors import ExportError


class Detector(nn.Module):
    """Detect objects in images, after their preparation and before their results.

    Masks are probabilities in each box, which the packages then paste into the image.

    Forward:
        Takes normalized images (B, 3, H, W) and `image_size` (B, 2), the height and
        width of each image without padding. Returns the K best detections: boxes with
        scores (B, K, 5), (x1, y1, x2, y2, score) in pixels, labels (B, K) and, with a
        mask head, masks (B, K, 28, 28). Empty places are -1.
    """

    task = 'detection'
    input_names = ('image', 'image_size')
    output_names = ('dets', 'labels')


def check_class(part: object, *accepted: type):
    """Raise an ExportError unless a part is of one of these classes.

    Subclasses are refused, since they may predict in another way.
    """
    if type(part) not in accepted:
        names = ', '.join(each.__name__ for each in accepted)
        package = accepted[0].__module__.partition('.')[0]
        raise ExportError(
            f'{type(part).__name__} cannot be exported; accepted are {names} of '
            f'{package}'
        )


def check_methods(part: nn.Module, base: type, *names: str):
    """Raise an ExportError unless a part inherits these methods from a class."""
    kind = type(part)
    if any(getattr(kind, name, None) is not getattr(base, name) for name in names):
        raise ExportError(
            f'{kind.__name__} cannot be exported, since it does not predict as '
            f'{base.__name__} of {base.__module__.partition(".")[0]} does'
        )
