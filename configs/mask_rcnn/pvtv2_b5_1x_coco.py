_base_ = [
    '../_base_/models/mask_rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/adamw_1x_pvt.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='mmattn.PVTv2', arch='b5', drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
# One image on each of 8 GPUs, and 2e-4 / 1.4.
optim_wrapper = dict(optimizer=dict(lr=1.428571e-4))
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)
