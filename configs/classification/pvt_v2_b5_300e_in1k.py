_base_ = './pvt_v2_b2_300e_in1k.py'
model = dict(backbone=dict(arch='b5', drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
