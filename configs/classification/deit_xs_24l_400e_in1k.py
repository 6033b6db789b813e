_base_ = './mait_xs_soft_400e_in1k.py'
model = dict(backbone=dict(masking='none'))
