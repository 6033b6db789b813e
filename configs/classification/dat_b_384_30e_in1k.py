_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_384.py',
    '../_base_/schedules/adamw_30e_dat.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.DAT',
        arch='base',
        img_size=384,
        window_size=12,
        drop_path_rate=0.5,
        out_indices=3,
    ),
    head=dict(in_channels=1024),
)
# The learning rate is a tenth of DAT++'s and ends at 1e-7.
optim_wrapper = dict(optimizer=dict(lr=2e-6))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=30,
        T_max=30,
        eta_min=1e-7,
        convert_to_iter_based=True,
    ),
]
train_dataloader = dict(batch_size=64)
# The checkpoint of the config at 224 pixels; tables of positions are resized.
load_from = 'work_dirs/dat_b_300e_in1k/epoch_300.pth'
