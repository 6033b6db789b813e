"""PSAMask through mmcv's own module, against loops over pixels and mask elements."""

import pytest
import torch

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

# Height and width of the mask and of the features.
CASES = {
    'as-large-as-any': (7, 9, 4, 5),
    'smaller': (3, 3, 4, 5),
    'larger': (9, 11, 2, 3),
    'mixed': (3, 9, 4, 2),
    'even': (4, 2, 3, 4),
    'one-pixel': (3, 1, 1, 1),
}


def loop_psa_mask(masks, kind, size):
    B, _, H, W = masks.shape
    half_h, half_w = (size[0] - 1) // 2, (size[1] - 1) // 2
    output = torch.zeros(B, H * W, H, W, dtype=masks.dtype)
    for h in range(H):
        for w in range(W):
            for i in range(size[0]):
                for j in range(size[1]):
                    y, x = h + i - half_h, w + j - half_w
                    if not (0 <= y < H and 0 <= x < W):
                        continue
                    element = masks[:, i * size[1] + j, h, w]
                    if kind == 'collect':
                        output[:, y * W + x, h, w] = element
                    else:
                        output[:, h * W + w, y, x] = element
    return output


@pytest.mark.parametrize('kind', ['collect', 'distribute'])
@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_psa_mask(case, kind):
    generator = torch.Generator().manual_seed(0)
    size, (H, W) = case[:2], case[2:]
    shape = 2, size[0] * size[1], H, W
    masks = torch.randn(shape, generator=generator, dtype=torch.float64)
    masks.requires_grad_()
    output = mmcv_ops.PSAMask(kind, size)(masks)
    expected = loop_psa_mask(masks, kind, size)
    assert torch.equal(output, expected)
    direction = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    assert torch.equal(
        *(torch.autograd.grad(o, masks, direction)[0] for o in (output, expected))
    )


@pytest.mark.parametrize('kind', ['collect', 'distribute'])
def test_psa_mask_of_views_and_in_half_precision(kind):
    masks = torch.randn(2, 15, 3, 4).half()
    expected = mmcv_ops.PSAMask(kind, (3, 5))(masks)
    last = masks.to(memory_format=torch.channels_last)
    assert torch.equal(mmcv_ops.PSAMask(kind, (3, 5))(last), expected)
    assert expected.dtype == torch.float16
    assert torch.equal(expected, loop_psa_mask(masks, kind, (3, 5)))
