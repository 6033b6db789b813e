_base_ = './mait_t_400e_in1k.py'
model = dict(backbone=dict(depth=36, masking='sch1'))
