"""Segmentors as graphs, beside mmseg's own predictions."""

import pytest
import torch
from mmseg.structures import SegDataSample
from small_models import built, segmentor_config
from torch.testing import assert_close

from mmattn.export import ExportError
from mmattn.export.api import export_graph
from mmattn.export.graphs import graph_of
from mmattn.export.metadata import Metadata
from mmattn.export.writing import FORMATS

HEADS = {
    'uper': dict(type='UPerHead', pool_scales=(1, 2, 3, 6)),
    'fpn': dict(type='FPNHead', feature_strides=[4, 8, 16, 32], align_corners=True),
    'fcn': dict(type='FCNHead', in_channels=64, in_index=3, num_classes=1),
}
SETTINGS = {'uper': {}, 'fpn': {}, 'fcn': dict(out_channels=1, threshold=0.45)}
SHAPE = (203, 161)  # maps of 7 x 6 at the last stride, which no pool divides


def segmentor(name: str):
    torch.manual_seed(0)
    model = built(segmentor_config(HEADS[name] | SETTINGS[name]))
    for module in model.modules():  # so that batch norms have something to do
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
    return model


def predicted(model, image):
    """Return mmseg's logits and labels for normalized images."""
    with torch.no_grad():
        metas = [dict(img_shape=image.shape[-2:], ori_shape=image.shape[-2:])]
        samples = [SegDataSample(metainfo=metas[0]) for _ in image]
        logits = model.encode_decode(image, metas * len(image))
        found = model.postprocess_result(logits, samples)
    labels = torch.cat([sample.pred_sem_seg.data for sample in found])
    return logits, labels.long()


@pytest.mark.parametrize('name', HEADS)
def test_graph_predicts_as_mmseg(name):
    model = segmentor(name)
    image = torch.randn(2, 3, *SHAPE)
    logits, labels = predicted(model, image)
    assert len(labels.unique()) > 1
    graph = graph_of(model)
    threshold = dict(mask_threshold=0.45) if name == 'fcn' else {}
    align_corners = model.decode_head.align_corners
    assert graph.metadata == dict(align_corners=align_corners, **threshold)
    with torch.no_grad():
        assert_close(graph(image)[0], logits)
        assert_close(graph_of(model, output='labels')(image)[0], labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name, dynamic, format',
    [('fpn', None, 'pt2'), ('fcn', 'batch', 'onnx'), ('uper', 'size', 'onnx')],
)
def test_file_predicts_as_mmseg(name, dynamic, format):
    pytest.importorskip('onnxruntime')
    model = segmentor(name)
    metadata = Metadata('segmentation', ['image'], [], [*SHAPE], dynamic=dynamic)
    _, runner = export_graph(graph_of(model), metadata, FORMATS[format])
    assert runner.metadata.outputs == ['logits']
    image = torch.randn(3 if dynamic else 1, 3, *SHAPE)
    if dynamic == 'size':
        image = image[..., :131, :99]
    expected, _ = predicted(model, image)
    found = torch.from_numpy(runner.run(image.numpy())[0])
    assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max())


def test_refusals():
    point = dict(type='PointHead', in_channels=[64], in_index=[3], channels=8)
    point |= dict(num_classes=5, num_fcs=1, coarse_pred_each_layer=True)
    fcn = dict(HEADS['fcn'], num_classes=5, channels=8, num_convs=1)
    cascade = segmentor_config(fcn)
    cascade.model.update(type='CascadeEncoderDecoder', num_stages=2)
    cascade.model.decode_head = [cascade.model.decode_head, point]
    cascade.model.test_cfg.update(
        subdivision_steps=2, subdivision_num_points=9, scale_factor=2
    )
    with pytest.raises(ExportError, match='CascadeEncoderDecoder cannot be exported'):
        graph_of(built(cascade))
    encoder = dict(type='EncHead', in_channels=[32, 64], in_index=[2, 3], num_codes=4)
    with pytest.raises(
        ExportError, match='EncHead cannot be exported, .* BaseDecodeHead of mmseg'
    ):
        graph_of(built(segmentor_config(encoder)))
    slide = dict(mode='slide', crop_size=(64, 64), stride=(32, 32))
    with pytest.raises(ExportError, match="got 'slide'"):
        graph_of(built(segmentor_config(fcn, test_cfg=slide)))
    with pytest.raises(ValueError, match="got 'colors'"):
        graph_of(built(segmentor_config(fcn)), output='colors')
