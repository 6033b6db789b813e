_base_ = [
    '../_base_/models/segformer.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_160k_segformer.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='mmattn.PVTv2',
        arch='mit_b0',
        drop_path_rate=0.1,
        # NVIDIA's license of these weights allows non-commercial use alone.
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://mit_b0'),
    ),
    decode_head=dict(in_channels=[32, 64, 160, 256]),
)
