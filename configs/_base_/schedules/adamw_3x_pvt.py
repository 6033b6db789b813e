# 36 epochs, from the authors' code of PVT v2: norms have no weight decay.
_base_ = './adamw_1x_pvt.py'
train_cfg = dict(max_epochs=36)
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05), paramwise_cfg=dict(norm_decay_mult=0.0)
)
_base_.param_scheduler[1].update(end=36, milestones=[27, 33])
