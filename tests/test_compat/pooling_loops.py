"""Interpolation of one point, for loops over bins and samples."""


def bilinear(image, y, x):
    """Value of `image` (C, H, W) at a point, by the border's pixels just outside it."""
    H, W = image.shape[1:]
    if y < -1 or y > H or x < -1 or x > W:
        return image.new_zeros(image.size(0))
    y, x = min(max(y, 0), H - 1), min(max(x, 0), W - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, H - 1), min(left + 1, W - 1)
    dy, dx = y - top, x - left
    upper = (1 - dx) * image[:, top, left] + dx * image[:, top, right]
    lower = (1 - dx) * image[:, bottom, left] + dx * image[:, bottom, right]
    return (1 - dy) * upper + dy * lower
