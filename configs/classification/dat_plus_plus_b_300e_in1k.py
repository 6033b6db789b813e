_base_ = './dat_plus_plus_t_300e_in1k.py'
model = dict(
    backbone=dict(arch='base', drop_path_rate=0.7), head=dict(in_channels=1024)
)
