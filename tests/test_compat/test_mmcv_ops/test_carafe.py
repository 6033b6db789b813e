"""CARAFE through mmcv's own functions, against loops over output pixels."""

import pytest
import torch

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

# Kernel, groups, scale, and shape of the features.
CASES = {
    'usual': (5, 1, 2, (2, 4, 4, 3)),
    'groups': (3, 2, 2, (1, 6, 3, 5)),
    'kernel-1': (1, 2, 3, (2, 2, 2, 3)),
    'scale-1': (3, 1, 1, (1, 2, 4, 4)),
    'one-pixel': (5, 1, 2, (1, 3, 1, 1)),
}


def inputs(kernel, groups, scale, shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    B, _, H, W = shape
    mask_shape = B, groups * kernel**2, scale * H, scale * W
    draw = [
        torch.randn(s, generator=generator, dtype=torch.float64)
        for s in (shape, mask_shape)
    ]
    return [tensor.to(dtype).requires_grad_() for tensor in draw]


def loop_carafe(features, masks, kernel, groups, scale):
    B, C, H, W = features.shape
    rows = []
    for b in range(B):
        for c in range(C):
            group = c // (C // groups)
            for y in range(scale * H):
                for x in range(scale * W):
                    total = features.new_zeros(())
                    for i in range(kernel):
                        for j in range(kernel):
                            v = y // scale + i - kernel // 2
                            u = x // scale + j - kernel // 2
                            if 0 <= v < H and 0 <= u < W:
                                k = (group * kernel + i) * kernel + j
                                total = total + masks[b, k, y, x] * features[b, c, v, u]
                    rows.append(total)
    return torch.stack(rows).view(B, C, scale * H, scale * W)


@pytest.mark.parametrize(
    ('kernel', 'groups', 'scale', 'shape'), CASES.values(), ids=CASES
)
def test_carafe(kernel, groups, scale, shape):
    x = inputs(kernel, groups, scale, shape)
    output = mmcv_ops.carafe(*x, kernel, groups, scale)
    expected = loop_carafe(*x, kernel, groups, scale)
    torch.testing.assert_close(output, expected)
    direction = torch.randn_like(output)
    torch.testing.assert_close(
        torch.autograd.grad(output, x, direction),
        torch.autograd.grad(expected, x, direction),
    )
    naive = mmcv_ops.CARAFENaive(kernel, groups, scale)(*x)
    torch.testing.assert_close(naive, expected)


def test_carafe_of_views():
    x = inputs(3, 2, 2, (2, 4, 3, 5))
    expected = mmcv_ops.carafe(*x, 3, 2, 2)
    views = [tensor.to(memory_format=torch.channels_last) for tensor in x]
    output = mmcv_ops.carafe(*views, 3, 2, 2)
    torch.testing.assert_close(output, expected)
    direction = torch.randn_like(output)
    torch.testing.assert_close(
        torch.autograd.grad(output, x, direction),
        torch.autograd.grad(expected, x, direction),
    )


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_carafe_in_half_precision(dtype):
    x = inputs(3, 1, 2, (1, 2, 3, 4), dtype)
    output = mmcv_ops.carafe(*x, 3, 1, 2)
    assert output.dtype == dtype
    exact = [tensor.detach().double().requires_grad_() for tensor in x]
    expected = mmcv_ops.carafe(*exact, 3, 1, 2)
    torch.testing.assert_close(output, expected.to(dtype))
    pairs = zip(
        torch.autograd.grad(output.sum(), x),
        torch.autograd.grad(expected.sum(), exact),
        strict=True,
    )
    for grad, expected_grad in pairs:
        torch.testing.assert_close(grad, expected_grad.to(dtype))


def test_carafe_of_an_empty_batch():
    x = inputs(3, 1, 2, (0, 2, 3, 4))
    assert mmcv_ops.carafe(*x, 3, 1, 2).shape == (0, 2, 6, 8)


def test_carafe_pack():
    layer = mmcv_ops.CARAFEPack(8, 2, compressed_channels=4)
    x = torch.randn(1, 8, 3, 5)
    output = layer(x)
    # The kernels sum to one, so a constant map stays constant away from the border.
    constant = layer.feature_reassemble(
        torch.ones_like(x).expand(-1, -1, -1, -1), torch.full((1, 25, 6, 10), 1 / 25)
    )
    assert output.shape == (1, 8, 6, 10)
    torch.testing.assert_close(constant[..., 5:6].amax(), torch.tensor(3 * 5 / 25))
