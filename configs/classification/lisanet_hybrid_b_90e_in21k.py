_base_ = './lisanet_hybrid_s_90e_in21k.py'
model = dict(
    backbone=dict(arch='hybrid_base', drop_path_rate=0.2),
    neck=dict(in_channels=576),
    head=dict(in_channels=2304),
)
