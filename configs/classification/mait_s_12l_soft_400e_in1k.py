_base_ = './mait_xs_soft_400e_in1k.py'
model = dict(backbone=dict(arch='small', depth=12), head=dict(in_channels=384))
