_base_ = './masked_cait_xxs24_400e_in1k.py'
model = dict(
    backbone=dict(arch='s24', masking='none', drop_path_rate=0.1),
    head=dict(in_channels=384),
)
