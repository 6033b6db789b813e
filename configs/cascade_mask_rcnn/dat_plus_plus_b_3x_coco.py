_base_ = './dat_plus_plus_t_3x_coco.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.8,
        init_cfg=dict(checkpoint='mmattn://dat_plus_plus_base'),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
# On 64 GPUs.
train_dataloader = dict(batch_size=1)
