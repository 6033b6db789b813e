_base_ = [
    '../_base_/models/sparse_rcnn_fpn.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/adamw_3x_pvt.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.PVTv2',
        arch='b2',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://pvt_v2_b2'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
# Sparse R-CNN has one image on each of 8 GPUs, a learning rate of 2.5e-5 / 1.4, and
# weight decay for all parameters.
optim_wrapper = dict(
    optimizer=dict(lr=1.785714e-5, weight_decay=1e-4),
    paramwise_cfg=None,
    clip_grad=dict(max_norm=1.0),
)
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)
