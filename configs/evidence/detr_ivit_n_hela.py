# DETR with the sizes of deformable_detr_ivit_n_hela.py, and dense attention to the map
# of stride 16.
_base_ = [
    '../_base_/models/detr.py',
    '../_base_/datasets/hela_instance.py',
    '../_base_/schedules/demo_detr.py',
    '../_base_/runtime/mmdet.py',
]
layer = dict(
    self_attn_cfg=dict(dropout=0.0),
    ffn_cfg=dict(feedforward_channels=512, ffn_drop=0.0),
)
model = dict(
    num_queries=60,
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[63.75, 63.75, 63.75]),
    backbone=dict(type='mmattn.IViT', arch='nano', out_indices=(2,)),
    neck=dict(in_channels=[160]),
    encoder=dict(num_layers=2, layer_cfg=layer),
    decoder=dict(
        num_layers=3, layer_cfg=dict(cross_attn_cfg=dict(dropout=0.0), **layer)
    ),
    bbox_head=dict(num_classes=1),
    test_cfg=dict(max_per_img=60),
)
del layer
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
