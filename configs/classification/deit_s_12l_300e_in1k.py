_base_ = './mait_t_12l_sch1_300e_in1k.py'
model = dict(backbone=dict(arch='small', masking='none'), head=dict(in_channels=384))
