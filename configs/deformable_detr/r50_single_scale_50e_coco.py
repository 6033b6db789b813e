_base_ = [
    '../_base_/models/deformable_detr.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/adamw_50e_detr.py',
    '../_base_/runtime/mmdet.py',
]
# Only the last map, of stride 32.
model = dict(
    backbone=dict(
        type='ResNet',
        depth=50,
        out_indices=(3,),
        frozen_stages=1,
        norm_cfg=dict(type='BN', requires_grad=False),
        norm_eval=True,
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
    ),
    neck=dict(in_channels=[2048], num_outs=1),
    encoder=dict(num_levels=1),
    decoder=dict(num_levels=1),
)
