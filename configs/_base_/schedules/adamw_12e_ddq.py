# 12 epochs, as mmdetection's DDQ DETR: twice the learning rate of DINO, a weight decay
# of 0.05 and 2000 iterations of warm-up.
_base_ = './adamw_12e_dino.py'
optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=0.05))
_base_.param_scheduler.insert(
    0, dict(type='LinearLR', start_factor=0.0001, by_epoch=False, begin=0, end=2000)
)
