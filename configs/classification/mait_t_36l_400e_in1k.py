# Mixed masking: all heads of the first 12 layers and one head of each other layer.
_base_ = './mait_t_400e_in1k.py'
model = dict(backbone=dict(depth=36, masking=[3] * 12 + [1] * 24))
