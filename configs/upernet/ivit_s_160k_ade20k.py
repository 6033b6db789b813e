_base_ = './ivit_t_160k_ade20k.py'
model = dict(backbone=dict(arch='small'))
