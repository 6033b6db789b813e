"""The masks of point-wise spatial attention, with the arguments of mmcv's operators.

Pixel (h, w) has a mask of size (h_mask, w_mask), centered on it. The operators write
each mask element at the pixel below it. Shapes: B batch, H W height and width.
"""

from torch.nn import functional as F

COLLECT = 0


def _margins(h_feature, w_feature, sizes) -> list[int]:
    """Return how many elements to add around masks to reach all pixels, for `F.pad`.

    A negative number removes elements that lie outside the map for every pixel.
    """
    margins = []
    for axis, size in (('w', w_feature), ('h', h_feature)):
        mask, half = sizes[f'{axis}_mask'], sizes[f'half_{axis}_mask']
        margins += [size - 1 - half, size - mask + half]
    return margins


def _written(output, psa_type, h_feature, w_feature):
    """Return the output as a view of shape (B, h, w, h', w') of pixels and targets."""
    size = h_feature, w_feature
    view = output.unflatten(1, size)
    return view.permute(0, 3, 4, 1, 2) if psa_type == COLLECT else view


def _skewed(masks, h_feature, w_feature):
    """Return the masks by target pixel: a view of (B, h, w, 2 H - 1, 2 W - 1).

    Target h' of pixel h is mask row h' - h + H - 1, so a step in h' moves one row down,
    and a step in h moves to the next pixel and one row up.
    """
    B, H, W = masks.size(0), h_feature, w_feature
    image, step_h, step_w, row, column = masks.stride()
    start = masks.storage_offset() + (H - 1) * row + (W - 1) * column
    strides = image, step_h - row, step_w - column, row, column
    return masks.as_strided((B, H, W, H, W), strides, start)


def psamask_forward(input, output, psa_type, *, h_feature, w_feature, **sizes):
    """Write the masks over whole maps into `output`, which starts at zero.

    Args:
        input: shape (B, h_mask * w_mask, H, W).
        output: shape (B, H * W, H, W). With type 1 (distribute), channel i is the map
            of pixel i's mask. With type 0 (collect), channel i holds what every pixel's
            mask has at pixel i.
        sizes: `h_mask`, `w_mask` and their halves; the batch, `num_`, is ignored.
    """
    shape = sizes['h_mask'], sizes['w_mask']
    masks = input.unflatten(1, shape).permute(0, 3, 4, 1, 2)
    masks = F.pad(masks, _margins(h_feature, w_feature, sizes)).contiguous()
    targets = _skewed(masks, h_feature, w_feature)
    _written(output, psa_type, h_feature, w_feature).copy_(targets)


def psamask_backward(
    grad_output, grad_input, psa_type, *, h_feature, w_feature, **sizes
):
    """Write the gradient of the masks; see `psamask_forward`."""
    H, W = h_feature, w_feature
    masks = grad_output.new_zeros(grad_input.size(0), H, W, 2 * H - 1, 2 * W - 1)
    _skewed(masks, H, W).copy_(_written(grad_output, psa_type, H, W))
    masks = F.pad(masks, [-margin for margin in _margins(H, W, sizes)])
    grad_input.copy_(masks.permute(0, 3, 4, 1, 2).flatten(1, 2))
