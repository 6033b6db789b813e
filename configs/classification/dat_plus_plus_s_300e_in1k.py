_base_ = './dat_plus_plus_t_300e_in1k.py'
model = dict(
    backbone=dict(arch='small', drop_path_rate=0.4), head=dict(in_channels=768)
)
