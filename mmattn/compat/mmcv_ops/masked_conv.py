"""The two halves of mmcv's masked convolution, which computes chosen pixels only.

mmcv multiplies the columns by the weight between the two calls. Shapes: C channels, H W
height and width, M chosen pixels.
"""

import torch
from torch.nn import functional as F


def masked_im2col_forward(
    im, mask_h_idx, mask_w_idx, col, kernel_h, kernel_w, pad_h, pad_w
):
    """Write the window of each chosen output pixel into a column of `col`.

    Args:
        im: shape (1, C, H, W).
        mask_h_idx, mask_w_idx: row and column of the chosen pixels, shape (M,).
        col: shape (C * kernel_h * kernel_w, M), written.
        kernel_h, kernel_w: size of the window.
        pad_h, pad_w: zeros around the image.
    """
    image = F.pad(im[0], (pad_w, pad_w, pad_h, pad_h))
    width = image.size(2)
    rows = mask_h_idx + torch.arange(kernel_h, device=im.device)[:, None]
    columns = mask_w_idx + torch.arange(kernel_w, device=im.device)[:, None]
    positions = rows[:, None] * width + columns  # (kernel_h, kernel_w, M)
    windows = image.flatten(1).index_select(1, positions.flatten())
    col.copy_(windows.view(col.shape))


def masked_col2im_forward(col, mask_h_idx, mask_w_idx, im, height, width, channels):
    """Write each column of `col` to its pixel; the other pixels of `im` stay.

    Args:
        col: shape (channels, M).
        mask_h_idx, mask_w_idx: row and column of the pixels, shape (M,).
        im: shape (1, channels, height, width).
    """
    im[0][:, mask_h_idx, mask_w_idx] = col
