# EfficientNet-Lite0 of timm. `tools/converters/efficientnet_lite0.py` writes ImageNet
# weights for `--pretrained work_dirs/efficientnet_lite0_in1k.safetensors`.
_base_ = './mask_rcnn_ivit_n_300i_hela.py'
custom_imports = dict(imports=['mmpretrain.models'])
model = dict(
    # As on ImageNet: from -1 to 1.
    data_preprocessor=dict(std=[127.5, 127.5, 127.5]),
    backbone=dict(
        _delete_=True,
        type='mmpretrain.TIMMBackbone',
        model_name='tf_efficientnet_lite0',
        features_only=True,
        out_indices=(1, 2, 3, 4),
    ),
    neck=dict(in_channels=[24, 40, 112, 320]),
)
