_base_ = './pvt_v2_mit_b0_160k_ade20k.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.IViT',
        arch='tiny',
        drop_path_rate=0.4,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/ivit_t_300e_in1k/epoch_300.pth'
        ),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
)
