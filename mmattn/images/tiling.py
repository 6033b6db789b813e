"""Place tiles on an image."""

from mmattn.errors import UserError, import_optional


def tile_boxes(
    size: tuple[int, int], tile: int | tuple[int, int], overlap: float
) -> list[list[int]]:
    """Return x1, y1, x2, y2 of the tiles of an image.

    Tiles at the right and lower border are moved inward, so that all have the same
    size. An image that is smaller than a tile is one tile.

    Args:
        size: height and width of the image.
        tile: side of the tiles, or their height and width.
        overlap: share of a tile that it has in common with the next.

    Raises:
        ValueError: an argument is out of range.
        ImportError: sahi is not installed.
    """
    sides = tuple(tile) if isinstance(tile, (list, tuple)) else (tile, tile)
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise UserError(
            f'`tile` must be a positive number or a height and a width, got {tile}'
        )
    if not 0 <= overlap < 1:
        raise UserError(f'`overlap` must be at least 0 and less than 1, got {overlap}')
    message = '`tile` requires sahi: pip install "mmattn[predict]"'
    slicing = import_optional(message, 'sahi.slicing')
    height, width = (min(pair) for pair in zip(size, sides, strict=True))
    overlaps = dict(overlap_height_ratio=overlap, overlap_width_ratio=overlap)
    return slicing.get_slice_bboxes(*size, height, width, False, **overlaps)
