_base_ = [
    '../_base_/models/detr.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/adamw_50e_detr.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.PVT',
        arch='small',
        drop_path_rate=0.1,
        out_indices=(3,),
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://pvt_small'),
    ),
    neck=dict(in_channels=[512]),
)
# Short sides of 640 to 800, without a crop.
_base_.train_pipeline[2] = dict(
    type='RandomChoiceResize',
    scales=[
        (1333, 640),
        (1333, 672),
        (1333, 704),
        (1333, 736),
        (1333, 768),
        (1333, 800),
    ],
    keep_ratio=True,
)
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))

optim_wrapper = dict(
    optimizer=dict(lr=1e-4),
    paramwise_cfg=dict(
        custom_keys=dict(_delete_=True, backbone=dict(lr_mult=0.1)),
    ),
)
_base_.param_scheduler[0].milestones = [33]
param_scheduler = _base_.param_scheduler
auto_scale_lr = dict(base_batch_size=16)
