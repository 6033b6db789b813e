_base_ = './mait_t_12l_sch1_300e_in1k.py'
model = dict(backbone=dict(arch='small', kernel_size=5), head=dict(in_channels=384))
