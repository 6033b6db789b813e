# 12 epochs, as mmdetection's DINO: a step after 11 and a learning rate of 1e-4, a tenth
# of it for the backbone alone.
_base_ = './adamw_50e_detr.py'
train_cfg = dict(max_epochs=12)
optim_wrapper = dict(
    optimizer=dict(lr=1e-4),
    paramwise_cfg=dict(custom_keys=dict(_delete_=True, backbone=dict(lr_mult=0.1))),
)
_base_.param_scheduler[0].update(end=12, milestones=[11])
auto_scale_lr = dict(base_batch_size=16)
