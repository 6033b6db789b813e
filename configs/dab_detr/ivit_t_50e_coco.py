_base_ = [
    '../_base_/models/dab_detr.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/adamw_50e_conditional_detr.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.IViT',
        arch='tiny',
        out_indices=(3,),
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/ivit_t_300e_in1k/epoch_300.pth'
        ),
    ),
    neck=dict(in_channels=[512]),
)
