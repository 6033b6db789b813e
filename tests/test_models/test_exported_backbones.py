"""Backbones as programs of PyTorch's operators alone, and in ONNX Runtime."""

import pytest
import torch
from export_checks import OnnxSession, decomposed

from mmattn.models import DAT, PVT, HMaiT, LiSANet, PVTv2
from mmattn.models.layers import RelativeMaskedAttention, StructureAwareAttention
from tools.benchmark.tolerances import assert_close

MODELS = {
    'LiSANet': lambda: LiSANet('small', img_size=64),
    'HyLiSANet': lambda: LiSANet('hybrid_nano', img_size=64),
    'LiSANet plain': lambda: LiSANet('isotropic', img_size=64),
    'DAT': lambda: DAT('nano', img_size=64),
    'HMaiT': lambda: HMaiT('nano', img_size=64),
    'PVT': lambda: PVT('nano', img_size=64),
    'PVTv2': lambda: PVTv2('b0'),
    'PVTv2 linear': lambda: PVTv2('b2_li'),
}


SLOW = [dict(kernel_resize=resize) for resize in ('stretch', 'spectral', 'gfnet')]
SLOW += [dict(kernel_resize='gfnet', kernel_domain='frequency'), dict(fft_dims=1)]
SLOW = [pytest.param(settings, marks=pytest.mark.slow) for settings in SLOW]


@pytest.mark.parametrize('settings', [{}, *SLOW], ids=str)
def test_structure_aware_attention_has_real_numbers_alone(settings):
    torch.manual_seed(0)
    layer = StructureAwareAttention(32, 2, (6, 5), patterns=3, **settings).eval()
    x = torch.randn(2, 9, 8, 32)
    program = decomposed(layer, (x,))
    values = [node.meta.get('val') for node in program.graph.nodes]
    assert not any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)
    with torch.no_grad():
        assert_close('out', layer(x), program(x))


def test_biases_that_require_gradients_in_onnx_runtime():
    torch.manual_seed(0)
    layer = RelativeMaskedAttention(8, 2, 1, table_grid=(6, 5)).eval()
    x = torch.randn(2, 6, 5, 8)
    session = OnnxSession(layer, (x,))
    with torch.no_grad():
        assert_close('out', layer(x), session(x)[0])


@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('size', [(64, 96), (97, 131)], ids=str)
def test_backbone_in_onnx_runtime(name, size):
    torch.manual_seed(0)
    model, image = MODELS[name]().eval(), torch.randn(2, 3, *size)
    batch = ({0: torch.export.Dim('batch', min=1)},)
    session = OnnxSession(model, (image,), batch)
    for x in (image, image[:1]):
        with torch.no_grad():
            expected = model(x)
        for e, a in zip(expected, session(x), strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4 * e.abs().max())
