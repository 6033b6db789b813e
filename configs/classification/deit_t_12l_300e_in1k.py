_base_ = './mait_t_12l_sch1_300e_in1k.py'
model = dict(backbone=dict(masking='none'))
