"""Mask2Former of mmsegmentation slides over a padded image as mmseg's other heads."""

import torch
from mmengine.config import Config

from mmattn.engine.model import build_model

CONFIG = """
_base_ = 'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(_delete_=True, type='mmattn.IViT', arch='nano'),
    decode_head=dict(
        in_channels=[32, 64, 160, 256],
        num_queries=5,
        pixel_decoder=dict(encoder=dict(num_layers=1)),
        transformer_decoder=dict(num_layers=1),
    ),
    test_cfg=dict(mode='slide', crop_size=(64, 64), stride=(32, 32)),
)
"""


def test_slide_inference_is_the_mean_of_the_windows(tmp_path):
    (tmp_path / 'config.py').write_text(CONFIG)
    model, _ = build_model(Config.fromfile(tmp_path / 'config.py'), None)
    image = torch.randn(1, 3, 64, 96)
    meta = dict(ori_shape=(50, 90), img_shape=(50, 90), pad_shape=(64, 96))
    with torch.no_grad():
        (window, other) = (
            model.encode_decode(
                image[..., x : x + 64], [dict(meta, img_shape=torch.Size((64, 64)))]
            )
            for x in (0, 32)
        )
        found = model.inference(image, [dict(meta)])
    assert found.shape == (1, 150, 64, 96)
    torch.testing.assert_close(found[..., :32], window[..., :32])
    both = (window[..., 32:] + other[..., :32]) / 2
    torch.testing.assert_close(found[..., 32:64], both)
