_base_ = [
    '../_base_/models/upernet_light.py',
    '../_base_/datasets/landcover.py',
    '../_base_/schedules/demo.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(type='mmattn.IViT', arch='nano', drop_path_rate=0.1),
    decode_head=dict(in_channels=[32, 64, 160, 256]),
)
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=100, max_keep_ckpts=1),
)
log_processor = dict(by_epoch=False, window_size=10)
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=8)
