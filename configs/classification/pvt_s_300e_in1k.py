_base_ = './pvt_t_300e_in1k.py'
model = dict(backbone=dict(arch='small'))
