_base_ = './r50_single_scale_50e_coco.py'
# Only the last map, of stride 16. The last stage is dilated except for its first block,
# as torchvision's is. mmdetection's ResNet would also dilate the first block.
model = dict(
    backbone=dict(
        type='mmseg.ResNet',
        strides=(1, 2, 2, 1),
        dilations=(1, 1, 1, 2),
        contract_dilation=True,
    )
)
