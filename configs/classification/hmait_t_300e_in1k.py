_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e_batch512.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(type='mmattn.HMaiT', arch='tiny', drop_path_rate=0.2, out_indices=3),
    head=dict(in_channels=768),
)
# 8 GPUs give a batch of 512.
train_dataloader = dict(batch_size=64)
