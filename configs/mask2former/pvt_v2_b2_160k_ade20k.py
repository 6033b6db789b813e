_base_ = [
    '../_base_/models/mask2former.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_160k_mask2former.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='mmattn.PVTv2',
        arch='b2',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://pvt_v2_b2'),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
)
