_base_ = 'lisanet_hybrid_s_16x4_110e_k400.py'
model = dict(
    backbone=dict(
        arch='hybrid_base',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='work_dirs/lisanet_hybrid_b_300e_in1k/epoch_300.pth'),
    ),
    neck=dict(in_channels=576),
    head=dict(in_channels=2304),
)
