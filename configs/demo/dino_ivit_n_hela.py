# DINO with the layers, levels, points and queries of `deformable_detr_ivit_n_hela.py`,
# and as many noised boxes as there are queries.
_base_ = [
    '../_base_/models/dino.py',
    '../_base_/datasets/hela_instance.py',
    '../_base_/schedules/demo_detr.py',
    '../_base_/runtime/mmdet.py',
]
attention = dict(num_levels=3, num_points=2)
ffn = dict(feedforward_channels=512)
model = dict(
    num_queries=60,
    num_feature_levels=3,
    data_preprocessor=dict(
        mean=[127.5, 127.5, 127.5], std=[63.75, 63.75, 63.75], pad_size_divisor=32
    ),
    backbone=dict(type='mmattn.IViT', arch='nano', out_indices=(1, 2, 3)),
    neck=dict(in_channels=[64, 160, 256], num_outs=3),
    encoder=dict(num_layers=2, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn)),
    decoder=dict(num_layers=3, layer_cfg=dict(cross_attn_cfg=attention, ffn_cfg=ffn)),
    bbox_head=dict(num_classes=1),
    dn_cfg=dict(group_cfg=dict(num_dn_queries=60)),
    test_cfg=dict(max_per_img=60),
)
del attention, ffn
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
