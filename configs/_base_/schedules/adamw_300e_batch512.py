# H-MaiT: Swin's recipe at the paper's batch of 512. That is half of Swin's batch, so
# the learning rates are half of Swin's: 5e-4, from 5e-7 and down to 5e-6.
_base_ = './adamw_300e_warmup20.py'
optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=5.0))
_base_.param_scheduler[1].eta_min = 5e-6
auto_scale_lr = dict(base_batch_size=512)
