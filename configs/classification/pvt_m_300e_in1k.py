_base_ = './pvt_t_300e_in1k.py'
model = dict(backbone=dict(arch='medium', drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
