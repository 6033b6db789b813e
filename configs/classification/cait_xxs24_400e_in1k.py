_base_ = './masked_cait_xxs24_400e_in1k.py'
model = dict(backbone=dict(masking='none'))
