# Two-stage Deformable DETR with two encoder and three decoder layers, strides 8 to 32,
# two points, and 60 queries, since an image has at most 30 small objects. In the same
# time, many steps of two images learn more than few steps of four.
_base_ = [
    '../_base_/models/deformable_detr.py',
    '../_base_/datasets/hela_instance.py',
    '../_base_/schedules/demo_detr.py',
    '../_base_/runtime/mmdet.py',
]
transformer = dict(num_levels=3, num_points=2, feedforward_channels=512, dropout=0.0)
model = dict(
    data_preprocessor=dict(
        mean=[127.5, 127.5, 127.5], std=[63.75, 63.75, 63.75], pad_size_divisor=32
    ),
    backbone=dict(type='mmattn.IViT', arch='nano', out_indices=(1, 2, 3)),
    neck=dict(in_channels=[64, 160, 256], num_outs=3),
    encoder=dict(num_layers=2, **transformer),
    decoder=dict(
        num_layers=3,
        num_queries=60,
        with_box_refine=True,
        as_two_stage=True,
        **transformer,
    ),
    bbox_head=dict(num_classes=1),
    test_cfg=dict(max_per_img=60),
)
train_dataloader = dict(batch_size=2)
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=200, max_keep_ckpts=1),
)
log_processor = dict(by_epoch=False, window_size=10)
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=2)
