_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_160k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    # 7 x 7 landmarks, as the paper says; landmarks=14 comes nearer to its FLOPs.
    backbone=dict(
        type='mmattn.IViT',
        arch='tiny',
        drop_path_rate=0.4,
        landmarks=7,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/ivit_t_300e_in1k/epoch_300.pth'
        ),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320),
)
