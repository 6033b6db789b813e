_base_ = './masked_cait_s24_400e_in1k.py'
model = dict(backbone=dict(masking='none'))
