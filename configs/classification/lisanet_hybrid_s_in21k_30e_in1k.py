_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_30e_from_in21k.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.LiSANet',
        arch='hybrid_small',
        drop_path_rate=0.1,
        out_indices=3,
        out_norm=False,
    ),
    neck=dict(type='mmattn.PooledMLP', in_channels=384),
    # As in ConvNeXt, the new classifier starts at a thousandth of the usual scale.
    head=dict(in_channels=1536, init_cfg=dict(std=2e-5)),
    # As in ConvNeXt, fine-tuning has no mixup and no CutMix.
    train_cfg=None,
)
# Over 25 blocks, the stem gets 0.055 of the rate, as it does with ConvNeXt's 0.8 over
# 12 groups of blocks.
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.895))
train_dataloader = dict(batch_size=64)
# The checkpoint of the pre-training.
load_from = 'work_dirs/lisanet_hybrid_s_90e_in21k/epoch_90.pth'
