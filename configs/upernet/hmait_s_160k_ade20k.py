_base_ = './hmait_t_160k_ade20k.py'
model = dict(backbone=dict(arch='small'))
