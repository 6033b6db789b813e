# DAT-B: 4e-4 for each 512 images, 50 epochs of warm-up, gradients clipped at 1. The
# learning rate starts and ends as in the smaller sizes.
_base_ = './adamw_300e.py'
optim_wrapper = dict(optimizer=dict(lr=8e-4), clip_grad=dict(max_norm=1.0))
_base_.param_scheduler[0].update(start_factor=1.25e-3, end=50)
_base_.param_scheduler[1].update(begin=50, T_max=250)
