# 50 epochs, as mmdetection's Conditional DETR and DAB-DETR: a step after 40 and a
# learning rate of 1e-4, a tenth of it for the backbone alone.
_base_ = './adamw_50e_detr.py'
optim_wrapper = dict(
    optimizer=dict(lr=1e-4),
    paramwise_cfg=dict(custom_keys=dict(_delete_=True, backbone=dict(lr_mult=0.1))),
)
auto_scale_lr = dict(base_batch_size=16)
