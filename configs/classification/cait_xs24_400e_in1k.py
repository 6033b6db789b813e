_base_ = './masked_cait_xxs24_400e_in1k.py'
model = dict(backbone=dict(arch='xs24', masking='none'), head=dict(in_channels=288))
