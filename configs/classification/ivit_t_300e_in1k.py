_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/lamb_300e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.IViT',
        arch='tiny',
        drop_path_rate=0.15,
        out_indices=3,
        out_norm=False,
    ),
    neck=dict(type='mmattn.PooledMLP', in_channels=512),
    head=dict(in_channels=2048),
)
# 8 GPUs give a batch of 4096. Where 512 images do not fit, train with a batch of 128
# and `optim_wrapper.accumulative_counts=4`.
train_dataloader = dict(batch_size=512)
