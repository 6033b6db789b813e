_base_ = './hmait_t_1x_coco.py'
model = dict(backbone=dict(arch='small'))
