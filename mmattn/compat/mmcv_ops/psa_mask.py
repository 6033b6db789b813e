"""The masks of point-wise spatial attention, with the arguments of mmcv's operators.

Pixel (h, w) has a mask of size (h_mask, w_mask), centered on it. The operators write
each mask element at the pixel below it. Shapes: B batch, H W height and width.
"""

from torch.nn import functional as F

COLLECT = 0


def _margins(size, mask, half) -> tuple[int, int]:
    """Return how many elements to add before and after a mask axis to reach all pixels.

    A negative number removes elements that lie outside the map for every pixel.
    """
    return size - 1 - half, size - mask + half


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


def psamask_forward(
    input,
    output,
    psa_type,
    num_,
    h_feature,
    w_feature,
    h_mask,
    w_mask,
    half_h_mask,
    half_w_mask,
):
    """Write the masks over whole maps into `output`, which starts at zero.

    Args:
        input: shape (B, h_mask * w_mask, H, W).
        output: shape (B, H * W, H, W). With type 1 (distribute), channel i is the map
            of pixel i's mask. With type 0 (collect), channel i holds what every pixel's
            mask has at pixel i.
        num_: batch, as in `input`; ignored.
    """
    masks = input.unflatten(1, (h_mask, w_mask)).permute(0, 3, 4, 1, 2)
    margins = (
        *_margins(w_feature, w_mask, half_w_mask),
        *_margins(h_feature, h_mask, half_h_mask),
    )
    masks = F.pad(masks, margins).contiguous()
    targets = _skewed(masks, h_feature, w_feature)
    _written(output, psa_type, h_feature, w_feature).copy_(targets)


def psamask_backward(
    grad_output,
    grad_input,
    psa_type,
    num_,
    h_feature,
    w_feature,
    h_mask,
    w_mask,
    half_h_mask,
    half_w_mask,
):
    """Write the gradient of the masks; see `psamask_forward`."""
    H, W = h_feature, w_feature
    shape = grad_input.size(0), H, W, 2 * H - 1, 2 * W - 1
    masks = grad_output.new_zeros(shape)
    gradient = _written(grad_output, psa_type, H, W)
    _skewed(masks, H, W).copy_(gradient)
    margins = *_margins(W, w_mask, half_w_mask), *_margins(H, h_mask, half_h_mask)
    masks = F.pad(masks, [-margin for margin in margins])
    grad_input.copy_(masks.permute(0, 3, 4, 1, 2).flatten(1, 2))
