_base_ = './r50_single_scale_50e_coco.py'
# The last map alone, of stride 16: the last stage is dilated but for its first block,
# as torchvision's is. mmdetection's ResNet would dilate the first block, too.
model = dict(
    backbone=dict(
        type='mmseg.ResNet',
        strides=(1, 2, 2, 1),
        dilations=(1, 1, 1, 2),
        contract_dilation=True,
    )
)
