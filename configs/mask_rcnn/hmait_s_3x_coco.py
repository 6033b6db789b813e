_base_ = './hmait_t_3x_coco.py'
model = dict(backbone=dict(arch='small'))
