_base_ = [
    '../_base_/models/mask_rcnn_fpn_light.py',
    '../_base_/datasets/hela_instance.py',
    '../_base_/schedules/demo.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='mmattn.IViT', arch='nano'),
    neck=dict(in_channels=[32, 64, 160, 256]),
)
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=100, max_keep_ckpts=1),
)
log_processor = dict(by_epoch=False, window_size=10)
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=4)
