# AdamW for a DETR from scratch: 1,200 iterations in about 15 minutes.
_base_ = './demo.py'
max_iters = 1200
train_cfg = dict(max_iters=max_iters, val_interval=200)
optim_wrapper = dict(optimizer=dict(lr=4e-4), clip_grad=dict(max_norm=1.0))
_base_.param_scheduler[1].update(end=max_iters, T_max=max_iters - 20)
