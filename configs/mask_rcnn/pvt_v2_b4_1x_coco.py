_base_ = './pvt_v2_b2_1x_coco.py'
model = dict(backbone=dict(arch='b4', init_cfg=dict(checkpoint='mmattn://pvt_v2_b4')))
# One image on each of 8 GPUs; the learning rate is 2e-4 / 1.4.
optim_wrapper = dict(optimizer=dict(lr=1.428571e-4))
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)
